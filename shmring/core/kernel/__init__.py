"""Reductions and copies: loops compiled for several instruction sets."""
