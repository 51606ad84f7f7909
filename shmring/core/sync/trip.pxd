# How far the processors of other ranks are.
from libc.stdint cimport int64_t, uint64_t

from shmring.core.c.atomics cimport full_fence, load_relaxed_u64, store_relaxed_u64
from shmring.core.sync.backoff cimport now_ns


# How long it takes until other processors have dropped a cache line, beyond a store to a line that no other has. The
# line is that of a word which only this thread stores and the others load again and again. It stores the value that the
# word has, so all that it could release is older than the first fence. 0: the others have not loaded the word since the
# last store, or the line has left their caches.
cdef inline int64_t trip_ns(uint64_t *word) noexcept nogil:
    cdef int64_t before = now_ns(), between, after
    full_fence()
    between = now_ns()
    store_relaxed_u64(word, load_relaxed_u64(word))
    full_fence()
    after = now_ns()
    return after - 2 * between + before if 2 * (after - between) > 3 * (between - before) else 0
