# cython: language_level=3
"""Pushing to a ring and popping from it without the interpreter: the example of docs/embedding.md."""

from libc.stdint cimport int64_t

from shmring.ring cimport (consumer_t, producer_t, ring_attach_consumer, ring_attach_producer, ring_close_consumer,
                           ring_close_producer, ring_is_finished, ring_try_pop, ring_try_push)


cdef extern from "<sched.h>" nogil:
    int sched_yield()


def push_numbers(char[::1] memory, int64_t count):
    """Push 0, 1, 2, ... into the ring in ``memory``, which has slots of 8 bytes."""
    cdef producer_t p
    cdef int64_t number = 0, pushed = 0
    if ring_attach_producer(&p, &memory[0], memory.nbytes) != 0:
        raise ValueError("there is no ring, or its producer's end is taken")
    with nogil:
        while number < count and pushed >= 0:
            pushed = ring_try_push(&p, &number, 1)
            if pushed == 0:
                sched_yield()      # full
            number += pushed
        ring_close_producer(&p, pushed >= 0)


def sum_numbers(char[::1] memory):
    """Pop all that comes until the producer closes; how many, and their sum."""
    cdef consumer_t c
    cdef int64_t batch[64]
    cdef int64_t count = 0, total = 0, popped = 0, i
    if ring_attach_consumer(&c, &memory[0], memory.nbytes) != 0:
        raise ValueError("there is no ring, or its consumer's end is taken")
    with nogil:
        while popped >= 0 and not ring_is_finished(&c):
            popped = ring_try_pop(&c, batch, 64)
            if popped == 0:
                sched_yield()      # empty
            for i in range(popped):
                total += batch[i]
            count += max(popped, <int64_t> 0)
        ring_close_consumer(&c, popped >= 0)
    return count, total
