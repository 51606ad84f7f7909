"""Shared memory: mappings, segment headers, names and their locks, segments."""
