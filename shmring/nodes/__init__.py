"""Communicators over several machines: shared memory within each, another engine (a wire) between them."""
