"""``shmring bench``: every implementation that is installed, timed in turn on the same processors.

`runner` times the slices, `processes` starts and stops the ranks of one competitor, `worker/` is the code of a rank,
`competitors` finds the implementations, `metrics` computes bandwidths and medians; `table`, `plot`, `report` and
`progress` show the results. ``docs/benchmarks.md`` describes the method.
"""
