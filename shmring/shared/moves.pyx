"""When the pages of this process are replaced: ranges are claimed, calls that may store there have ended, and no thread
forks.

Pages are copied and then replaced, so a store between the two would be lost. A thread stores into an array in three
ways. In a collective or in a message of any communicator of the process: those have a turn, which is taken here, or a
call on other arrays. In `copy_back`: these are counted. In its own code: the caller of `share` and `close` excludes
that. The GIL is kept from the first look at the turns to the last page, so no call begins meanwhile, and no fork.
"""

import time
from bisect import bisect_left, insort

from libc.stdlib cimport calloc, free

from shmring._c.atomics cimport load_acquire_u32
from shmring.arrays.array_view cimport ncopying
from shmring.engine.engine cimport BUSY, Engine, memory_t
from shmring.shared.registry cimport MovedArray

from shmring.base.lifecycle import Stage, in_child, tracked
from shmring.sync.turn import Turn

cdef double PAUSE_S = 0.0005

# Of the thread that changes the claims or replaces pages, and of one that forks. Re-entrant, for signal handlers.
turn = Turn("memory that is being shared", is_reentrant=True)
cdef list _claims = []      # ranges (start, end) of whole pages, which do not overlap, by address


def claim(list ranges, list claimed):
    """Claim ranges of whole pages; each that was, is appended to ``claimed``.

    Raises
    ------
    ValueError
        Two overlap, or another call has claimed memory of one.
    """
    turn.run(_claim, ranges, claimed)


def _claim(list ranges, list claimed):
    for start, end in ranges:
        i = bisect_left(_claims, (start, end))
        for other in _claims[max(i - 1, 0):i + 1]:
            if start < other[1] and other[0] < end:
                mistake = "two of the arrays overlap" if other in claimed else "the memory is shared already"
                raise ValueError(f"{mistake}, at {max(start, other[0]):#x}")
        insort(_claims, (start, end))
        claimed.append((start, end))


def disclaim(list ranges):
    """Give up claims, and take them out of the list."""
    turn.run(_disclaim, ranges)


def _disclaim(list ranges):
    for one in ranges:
        i = bisect_left(_claims, one)
        if _claims[i:i + 1] == [one]:
            del _claims[i]
    ranges.clear()      # another call may claim them from now on


def make_shared(list arrays):
    """Replace the pages of arrays by those of their segments. Waits for the calls of other threads on them.

    If this raises (see `MovedPages.move`; `RuntimeError` inside a call of this thread on them), those before the one
    that failed are shared.
    """
    replace(arrays, None)


def make_private(list arrays, are_mapped):
    """Make arrays private with their present content; ``are_mapped`` as in `MovedArray.unshare`, for each of them.

    Returns those that were shared until then: not what another thread has made private meanwhile. Waits, and raises, as
    `make_shared`: then those before the one that failed are private.
    """
    try:
        return replace(arrays, are_mapped)
    finally:
        release(arrays)


def make_private_in_child(list arrays):
    """`make_private` in a forked child, which has no other thread."""
    cdef MovedArray array
    for array in arrays:
        if array.is_registered:
            array.unshare(True)
    release(arrays)


cdef int release(list arrays) except -1:
    cdef MovedArray array
    for array in arrays:
        if not array.is_registered:
            array.release()
    return 0


cdef list replace(list arrays, are_mapped):
    cdef list replaced = []
    while not turn.run(_attempt, arrays, are_mapped, replaced):
        time.sleep(PAUSE_S)      # signal handlers run
    return replaced


def _attempt(list arrays, are_mapped, list replaced):
    """Replace the pages, unless a call may store there; whether it was done. ``are_mapped`` is None: share them."""
    cdef list engines = tracked(Stage.ENGINE)
    cdef MovedArray array
    cdef int i, nranges = len(arrays), nengines = len(engines)
    cdef memory_t *ranges = <memory_t *> calloc(nranges + 1, sizeof(memory_t))
    cdef int *taken = <int *> calloc(nengines + 1, sizeof(int))
    # No Python code runs from here on, so the GIL is kept.
    try:
        if ranges == NULL or taken == NULL:
            raise MemoryError(f"no memory to look at {nengines} communicators")
        if load_acquire_u32(&ncopying):
            return False
        for i in range(nranges):
            array = arrays[i]
            ranges[i].start, ranges[i].end = <size_t> array.start, <size_t> array.end
        for i in range(nengines):
            taken[i] = (<Engine> engines[i]).take_from_stores(ranges, nranges)
            if taken[i] == BUSY:
                return False
        for i in range(nranges):
            array = arrays[i]
            if are_mapped is None:
                array.share()
            elif array.is_registered:
                array.unshare(are_mapped[i])
                replaced.append(array)
    finally:
        for i in range(nengines if taken != NULL else 0):
            (<Engine> engines[i]).give_back(max(taken[i], 0))
        free(ranges)
        free(taken)
    return True


@in_child
def _renew():
    """In a forked child, where no thread moves pages, and all that was shared becomes private."""
    turn.renew()
    _claims.clear()
