"""``python -m shmring.bench.channels``: channels and queues beside what else moves messages between Python processes.

`peers` has one class for each, with the calls that its own documentation shows; `pair` the two processes; `scenes` what
is timed, in turns; `__main__` writes it down; `plot` draws. ``docs/channel-benchmarks.md`` has the method and results.
"""
