"""The code of one rank of a competitor, asleep until the runner sends an order.

This package needs only NumPy and the library of the competitor, so that it runs in environments without shmring.
`__main__.py` starts it in any interpreter as ``python PATH/worker ...``.

The runner's orders and the answers are lines of JSON over a Unix socket (`control.py`):

    {"do": "prepare", "op": ..., "dtype": ..., "nbytes": ..., "rewrite": ...}    make arrays, check results
    {"do": "slice", "what": "call", "warmup": n, "times": n}                     time calls -> {"ns": ...}
    {"do": "once", "what": "idle", ...}                                          what an adapter measures by itself
    {"do": "check"}                                                              check results once more
    {"do": "quit"}
"""
