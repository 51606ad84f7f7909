"""Watching running jobs from outside: what their ranks do, and for which ranks they wait."""
