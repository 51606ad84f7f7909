"""Waiting: spin, yield, sleep; liveness of processes; the abort record; the wait-for graph."""
