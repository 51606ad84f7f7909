"""Watching running jobs from outside: what their ranks do, and which ranks keep the others."""
