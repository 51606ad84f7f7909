# Compiled plans: plans as structs, which the engine executes without the interpreter.
from libc.stdint cimport int8_t, int32_t, int64_t, uint64_t

from shmring.base.heap cimport Heap
from shmring.arrays.store_tuning cimport stores_t

cdef enum:
    IN = 0
    OUT = 1
    SLOT = 2

cdef enum:
    COPY = 0
    REDUCE = 1
    CLAIM = 2
    PUBLISH = 3
    AWAIT = 4
    RELEASE = 5
    AWAIT_RELEASE = 6
    FOLLOW = 7         # of a plan that has another: after the first AWAIT, go on with that of rank 0's choice

ctypedef struct operand_t:
    int32_t space
    int32_t rank
    int64_t offset
    int64_t offset_step
    int64_t round
    int64_t round_step

ctypedef struct step_t:
    int32_t code
    int32_t rank                   # of an AWAIT
    int32_t nsources
    int32_t nalso
    int8_t opens                   # a REDUCE: from operands only, or else the first source is a prefix
    int8_t closes                  # ... to a result, or else to a prefix
    int8_t wide                    # bytes of a prefix for each byte of an operand
    int64_t round
    int64_t round_step
    int64_t nbytes
    operand_t *operands            # dst, also ..., sources ...

ctypedef struct loop_t:
    int64_t times
    step_t *steps
    int nsteps


# What an execution needs of a program: no objects, as helper threads have no interpreter.
ctypedef struct program_t:
    loop_t *loops
    int nloops
    uint64_t rounds
    uint64_t places                # of a slot: a power of two
    size_t place_nbytes
    program_t *exchange            # NULL: has no such form


cdef class Program:
    """A plan, compiled: the steps as structs."""

    cdef program_t code
    cdef readonly object plan
    cdef bytes algorithm_name
    cdef const char *algorithm           # the characters of the name
    cdef stores_t stores
    cdef bint gathers_all                # a rank that has ended it knows that all ranks have begun it
    cdef bint learns                     # how to store into outboxes: it writes to them
    # Of the program of one thread's share (shmring.plan.thread_shares) of a collective: the last thread's program, and
    # the distance between the shares of two threads. None, 0: one thread executes the collective.
    cdef Program last
    cdef size_t share_nbytes
    cdef Program exchange                # of `Plan.exchange`
    cdef Heap heap

    cdef int compile_step(self, step_t *s, object step) except -1
