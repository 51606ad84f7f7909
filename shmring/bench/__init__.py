"""``shmring bench``: every implementation that is installed, timed in turn on the same processors.

`turns` is the clock: contenders take turns in slices of milliseconds. `runner` has a row of processes take them, and
`processes` starts and stops those of one competitor; `worker/` is the code of a rank, with an adapter for each library.
`competitors` finds the libraries, `metrics` computes bandwidths and medians; `tables`, `plot` and `report` show the
results. ``docs/benchmarks.md`` and ``docs/channel-benchmarks.md`` describe the method. The files of the repository's
``bench/`` time calls side by side in one job by `turns`, too.
"""
