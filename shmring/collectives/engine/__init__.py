"""Executes compiled plans and eager exchanges over outboxes, without the interpreter."""
