"""Prospects: processes that may still take an end that no process has; a wait for that end stops when there are none.

An end of a channel without a name goes to the process that uses it first. Until then each process that has it holds a
shared lock on a byte of the memory's file, by an open file of its own. The kernel releases the lock when that process
ends, by any cause. A process that waits for the end tests whether another one has the lock.

The lock is passed on with the end: a child is forked with an open file that its parent has locked for it, and a pickled
end is accompanied by one. So the lock is held at every moment while an end is passed on. A process that has pickled an
end holds its own lock no longer.
"""

from libc.stdlib cimport calloc, free
from posix.unistd cimport close

import os
import threading
import weakref

cdef void *first = NULL                 # the Prospects of this process, linked: a fork finds them without Python code

# By weak references to the segments. A dict, as no Python code runs when an entry goes with its segment: the exception
# of a signal handler would be lost there.
cdef dict by_segment = {}

# Open files that go to processes which multiprocessing is starting, each with the Popen that has a pid once they did.
cdef list travelling = []


cdef class Prospects:
    """The prospects of the ends in one memory, as this process knows them.

    Parameters
    ----------
    descriptor : int
        The descriptor of the memory, which stays open as long as there are ends.
    count : int
        The number of ends.
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
        """Note that an object of this process may take that end."""
        self.own[end] += 1
        if self.known.file >= 0 and not set_prospect(self.known.file, end, True):
            self.give_up()

    cdef void remove(self, int64_t end) noexcept:
        """Note that such an object has taken the end, was closed, or was passed on."""
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
        """The open file that accompanies pickled ends, for `adopt`; None if the locks cannot be set."""
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
        """Take over the open file that accompanied ends which arrived here."""
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
    """The prospects of the ends in a segment, made at the first call."""
    found = by_segment.get(weakref.ref(segment))
    if found is None:
        found = by_segment[weakref.ref(segment, by_segment.pop)] = Prospects(segment.descriptor, count)
    return found


cdef bint is_only_thread() except -1:
    """Whether no other thread of Python runs in this process. Closes open files that have arrived."""
    forget_arrived()
    return threading.active_count() == 1


cdef int forget_arrived(bint all_of_them=False) except -1:
    """Close the open files of processes that have started, or never will."""
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
