"""Which processes may still take an end that none has taken yet: a wait for it ends when there is none.

An end of a channel without a name goes to the process that uses it first. Until then each process that has it holds a
shared lock on a byte of the memory's file, by an open file of its own. The kernel releases the lock when that process
ends, however it does. A process that waits for the end looks whether another one has the lock.

The lock travels with the end: a child is forked with an open file that its parent has locked for it, and a pickled end
is accompanied by one. So there is no moment at which an end is under way and its lock is not held. A process that has
pickled an end has passed it on, and holds its own lock no longer.
"""

from libc.stdlib cimport calloc, free
from posix.unistd cimport close

import os
import threading
import weakref

cdef void *first = NULL                 # the Prospects of this process, linked: a fork finds them without Python code

# By weak references to the segments. A dict, as what leaves it when a segment dies is no Python code, in which the
# exception of a signal handler would be lost.
cdef dict by_segment = {}

# Open files that go to processes which multiprocessing is starting, each with the Popen that has a pid once they did.
cdef list travelling = []


cdef class Prospects:
    """Those of the ends of one memory, as this process knows them.

    Parameters
    ----------
    descriptor : int
        Of the memory; it stays open as long as there are ends.
    count : int
        Of ends.
    """

    def __cinit__(self, int descriptor, int count):
        global first
        self.known.file = self.heir = -1
        self.own = <int32_t *>calloc(count, sizeof(int32_t))
        if self.own == NULL:
            raise MemoryError
        self.known.own = self.own
        self.count, self.descriptor = count, descriptor
        self.next = first
        if first != NULL:
            (<Prospects>first).previous = <void *>self
        first = <void *>self

    def __dealloc__(self):
        global first
        if self.own == NULL:
            return
        if self.previous != NULL:
            (<Prospects>self.previous).next = self.next
        else:
            first = self.next
        if self.next != NULL:
            (<Prospects>self.next).previous = self.previous
        if self.known.file >= 0:
            close(self.known.file)
        free(self.own)

    cdef void add(self, int64_t end) noexcept:
        """An object of this process may take that end."""
        self.own[end] += 1
        if self.known.file >= 0 and not set_prospect(self.known.file, end, True):
            self.give_up()

    cdef void remove(self, int64_t end) noexcept:
        """It has taken it, has been closed, or was passed on."""
        self.own[end] -= 1
        if self.own[end] == 0 and self.known.file >= 0:
            set_prospect(self.known.file, end, False)

    cdef bint has_own(self) noexcept:
        cdef int i
        for i in range(self.count):
            if self.own[i]:
                return True
        return False

    cdef int locked(self) noexcept:
        """A new open file with the locks of this process; -1 if that is impossible."""
        cdef int i, file = reopen(self.descriptor)
        for i in range(self.count):
            if file >= 0 and self.own[i] and not set_prospect(file, i, True):
                close(file)
                file = -1
        return file

    cdef void post(self) noexcept:
        """Before an end is passed on for the first time: show which this process may still take."""
        if self.known.file < 0 and not self.is_unknown:
            self.known.file = self.locked()
            if self.known.file < 0:
                self.give_up()

    cdef void give_up(self) noexcept:
        """Conclude nothing any longer, in this process."""
        self.is_unknown = True
        if self.known.file >= 0:
            close(self.known.file)
        self.known.file = -1

    cdef object pass_on(self, object ends):
        """What accompanies ends that are pickled, for `adopt`; None if nothing can be known."""
        from multiprocessing import context, reduction
        cdef int file
        forget_arrived()
        self.post()
        file = -1 if self.is_unknown else reopen(self.descriptor)
        for end in ends:
            if file >= 0 and not set_prospect(file, end, True):
                close(file)
                file = -1
        if file < 0:
            self.give_up()
            return None
        try:
            passed = reduction.DupFd(file)
        except BaseException:
            close(file)
            raise
        popen = context.get_spawning_popen()
        if popen is None:
            close(file)                # it was duplicated
        else:
            travelling.append((file, weakref.ref(popen)))
        return passed

    cdef int adopt(self, object passed) except -1:
        """Take over what has accompanied ends that arrived here."""
        cdef int file = passed.detach() if passed is not None else -1
        cdef int i
        if file < 0:
            self.give_up()
        elif self.known.file >= 0 or self.is_unknown:
            close(file)
        else:
            self.known.file = file
            for i in range(self.count):
                if self.own[i] and not set_prospect(file, i, True):
                    self.give_up()
                    break
        return 0


cdef Prospects prospects_of(object segment, int count):
    """Those of the ends in a segment, made at the first call."""
    found = by_segment.get(weakref.ref(segment))
    if found is None:
        found = by_segment[weakref.ref(segment, by_segment.pop)] = Prospects(segment.descriptor, count)
    return found


cdef bint is_only_thread() except -1:
    """Whether no other thread of Python runs in this process. Closes what has arrived."""
    forget_arrived()
    return threading.active_count() == 1


cdef int forget_arrived(bint all_of_them=False) except -1:
    """Close the open files that new processes have by now, or never will."""
    cdef int i
    for i in range(len(travelling) - 1, -1, -1):
        file, popen = travelling[i]
        popen = popen()
        if all_of_them or popen is None or getattr(popen, "pid", None) is not None:
            del travelling[i]
            close(file)
    return 0


def _before_fork():
    cdef void *at = first
    forget_arrived()
    while at != NULL:
        if (<Prospects>at).has_own():
            (<Prospects>at).post()
            if not (<Prospects>at).is_unknown:
                (<Prospects>at).heir = (<Prospects>at).locked()
                if (<Prospects>at).heir < 0:
                    (<Prospects>at).give_up()
        at = (<Prospects>at).next


def _after_fork_in_parent():
    cdef void *at = first
    while at != NULL:
        if (<Prospects>at).heir >= 0:
            close((<Prospects>at).heir)
            (<Prospects>at).heir = -1
        at = (<Prospects>at).next


def _after_fork_in_child():
    cdef void *at = first
    forget_arrived(True)               # those are for other children
    while at != NULL:
        if (<Prospects>at).known.file >= 0:
            close((<Prospects>at).known.file)
        (<Prospects>at).known.file = (<Prospects>at).heir
        (<Prospects>at).heir = -1
        at = (<Prospects>at).next


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
