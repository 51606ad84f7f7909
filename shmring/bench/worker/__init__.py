"""What runs in a competitor's processes: one rank, asleep until the conductor gives it an order.

This package stands alone: NumPy and the competitor's own library are all it needs, so that it runs in environments that
have no shmring. `__main__.py` starts it in any interpreter as ``python PATH/worker ...``.

The conductor's orders and the answers are lines of JSON over a Unix socket (`control.py`):

    {"do": "prepare", "op": ..., "dtype": ..., "nbytes": ..., "rewrite": ...}    make arrays, check results
    {"do": "slice", "what": "call", "warmup": n, "times": n}                     time calls -> {"ns": ...}
    {"do": "check"}                                                              check results once more
    {"do": "quit"}
"""
