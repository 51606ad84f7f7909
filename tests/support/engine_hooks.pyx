# cython: language_level=3, binding=True
"""What a rank knows of its calls, changed by tests so that ranks differ in it; built by `support.compiled`."""

from libc.stdint cimport uint64_t

from shmring.communicator cimport Communicator
from shmring.core.c.layout cimport SHMRING_NCHOICES, SHMRING_SMALL
from shmring.collectives.engine.engine cimport Engine
from shmring.collectives.engine.kinds cimport nblocks_in, nblocks_out, ranks_read
from shmring.collectives.p2p.point_to_point cimport PointToPoint
from shmring.core.sync cimport long_waits


def begin_with(Engine engine not None, stores=None, exchanges=None, path=None):
    """How this rank begins calls of which nothing is known."""
    if stores is not None:
        engine.variants.stores = stores
    if exchanges is not None:
        engine.variants.exchanges = exchanges
    if path is not None:
        engine.variants.path = path


def count_one_more(Engine engine not None):
    """Have the learners of this rank believe that there was one call more."""
    for i in range(SHMRING_NCHOICES):
        if engine.variants.learners[i].signature:
            engine.variants.learners[i].learned.calls += 1


def fill_small_part_first(Communicator comm not None, int peer):
    """Send pieces to a higher rank through the small part of the byte ring, where nothing is learned."""
    (<PointToPoint> comm.messages).matching.queues.send[peer].laps.part = SHMRING_SMALL


def split_from(Engine engine not None, double nbytes):
    """Split messages from this size up among the threads of this rank."""
    engine.team.split_nbytes = nbytes


def mix_into_history(Engine engine not None, uint64_t number):
    """Change the history of this rank's calls."""
    engine.c.history ^= number


def write_notes_after(double seconds):
    """Write the first note of a wait of this process after so many seconds."""
    long_waits.first_note_ns = <long long> (seconds * 1e9)


def read_of(int kind, int rank, int root, int size):
    """The ranks that an eager exchange of a kind reads; None: there is none, as they do not follow one another."""
    cdef int first = 0, last = 0
    return range(first, last) if ranks_read(kind, rank, root, size, &first, &last) else None


def blocks_of(int kind, int size):
    """The blocks of ``x`` and of ``out``."""
    return nblocks_in(kind, size), nblocks_out(kind, size)
