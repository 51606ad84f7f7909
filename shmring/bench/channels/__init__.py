"""``python -m shmring.bench.channels``: channels and queues beside what else moves messages between Python processes.

`peers` has one class for each, with the calls that its own documentation shows; `scenes` what is timed; `__main__` takes
turns among them, and writes it down; `plot` draws. ``docs/channel-benchmarks.md`` has the method and results.
"""
