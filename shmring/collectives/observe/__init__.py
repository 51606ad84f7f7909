"""Observation of ranks at work, for other processes and for errors: looks at outboxes, and accounts of calls."""
