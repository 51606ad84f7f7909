"""``python -m shmring.bench.channels``: channels and queues compared with other message libraries for Python processes.

`peers` has one class for each library, with the calls that its documentation shows. `pair` starts the two processes,
`scenes` has the measurements, `__main__` prints the results, and `plot` draws them. ``docs/channel-benchmarks.md`` has
the method and results.
"""
