"""Functions of JAX arrays that communicate by rank: collectives and messages as custom calls of XLA.

`shmring.jax` has the public names, each from its module: `reductions`, `movement`, `messages`. All bind their
calls in `binding`; `operations` has the table that the primitives are made from; `handler` executes them.
"""
