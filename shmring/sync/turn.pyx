"""Functions that one thread of a process executes at a time (sync/turn.pxd)."""

from queue import SimpleQueue


cdef class Turn:
    """Runs functions, one at a time. What a signal handler raises anywhere leaves the turn free.

    Parameters
    ----------
    name : str
        For the error of a call inside a call.
    is_reentrant : bool, default False
        Whether the thread that has the turn may call again, as in a signal handler or a finalizer.
    """

    def __cinit__(self, str name not None, *, bint is_reentrant=False):
        self.queue = SimpleQueue()
        self.name = name
        self.is_reentrant = is_reentrant

    def take(self):
        """Take the turn, once it is free; if this raises, it is not taken. For hooks that the interpreter calls."""
        if not self.is_reentrant or not has_turn(&self.turn):
            take_turn(&self.turn, self.queue, self.name)
        self.depth += 1

    def give(self):
        """Give the turn that `take` has taken; no effect if this thread does not have it."""
        if not has_turn(&self.turn):
            return
        self.depth -= 1
        if self.depth == 0:
            give_turn(&self.turn, self.queue)

    def renew(self):
        """Make it free, in a forked child: the thread that had it is not here."""
        self.turn.is_taken = False
        self.turn.nwaiting = self.depth = 0
        self.queue = SimpleQueue()

    def run(self, function, *args):
        """Take the turn, call ``function(*args)``, give the turn, return the result."""
        self.take()
        try:
            return function(*args)
        finally:
            self.give()
