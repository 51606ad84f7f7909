"""``shmring bench``: every implementation that is installed, timed in turn on the same processors.

`conductor` runs the slices, `team` the processes of one competitor, `worker/` is what runs in them; `competitors` knows
who can take part, `figures` what a number means, `table`, `plot` and `progress` show it. ``docs/benchmarks.md`` has the
method.
"""
