"""Prospects: processes that may still take an end that no process has; a wait for that end stops when there are none.

An end of a channel without a name goes to the process that uses it first. Until then each process that has it holds a
shared lock on a byte of the memory's file, by an open file of its own. The kernel releases the lock when that process
ends, by any cause. A process that waits for the end tests whether another one has the lock.

The lock is passed on with the end: a child is forked with an open file that its parent has locked for it, and a pickled
end is accompanied by one. So the lock is held at every moment while an end is passed on. A process that has pickled an
end holds its own lock no longer.
"""

cimport cython
from libc.errno cimport ENOENT, errno
from libc.stdio cimport snprintf
from libc.stdlib cimport atoi, calloc, free, malloc
from libc.string cimport memcmp
from posix.fcntl cimport O_CLOEXEC, O_RDONLY, open
from posix.unistd cimport close, read

import os
import threading
import weakref

from shmring.core.c.thread cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock

from shmring.core.memory.descriptor import Descriptor, above_standard, passed_on

cdef extern from "<dirent.h>" nogil:
    ctypedef struct DIR:
        pass
    struct dirent:
        char *d_name
    DIR *opendir(const char *path)
    dirent *readdir(DIR *folder)
    int closedir(DIR *folder)

cdef extern from "<sys/syscall.h>" nogil:
    const long SYS_gettid

cdef extern from "<unistd.h>" nogil:
    long syscall(long number, ...)

cdef pthread_mutex_t mutex              # guards the list and what is in it; no Python code runs under it
cdef void *first = NULL                 # the Prospects of this process, linked: a fork finds them without Python code

pthread_mutex_init(&mutex, NULL)

# By weak references to the segments. A dict, as no Python code runs when an entry goes with its segment: the exception
# of a signal handler would be lost there.
cdef dict by_segment = {}

# The threads that this process had when this module was imported, without Python's: they belong to NumPy, or to another
# library that calculates, and never use an end.
cdef int32_t *older = NULL
cdef int nolder = 0


def _note_older_threads():
    global older, nolder
    pythons = {threading.get_native_id(), *(thread.native_id for thread in threading.enumerate())}
    threads = set(map(int, os.listdir("/proc/self/task"))) - pythons
    older = <int32_t *>malloc((len(threads) + 1) * sizeof(int32_t))
    if older == NULL:
        raise MemoryError
    for thread in threads:
        older[nolder] = thread
        nolder += 1


_note_older_threads()


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
        self.known.file = self.heir = self.kept = -1
        self.own = <int32_t *>calloc(count, sizeof(int32_t))
        if self.own == NULL:
            raise MemoryError
        self.known.own = self.own
        self.count, self.descriptor, self.travelling = count, descriptor, []
        pthread_mutex_lock(&mutex)
        self.next = first
        if first != NULL:
            (<Prospects>first).previous = <void *>self
        first = <void *>self
        pthread_mutex_unlock(&mutex)

    def __dealloc__(self):
        global first
        if self.own == NULL:
            return
        pthread_mutex_lock(&mutex)
        if self.previous != NULL:
            (<Prospects>self.previous).next = self.next
        else:
            first = self.next
        if self.next != NULL:
            (<Prospects>self.next).previous = self.previous
        pthread_mutex_unlock(&mutex)
        if self.known.file >= 0:
            close(self.known.file)
        if self.kept >= 0:
            close(self.kept)
        free(self.own)

    cdef void add(self, int64_t end) noexcept:
        """Note that an object of this process may take that end."""
        pthread_mutex_lock(&mutex)
        self.own[end] += 1
        if self.known.file >= 0 and not set_prospect(self.known.file, end, True):
            self.give_up()
        pthread_mutex_unlock(&mutex)

    cdef void remove(self, int64_t end) noexcept:
        """Note that such an object has taken the end, was closed, or was passed on."""
        pthread_mutex_lock(&mutex)
        self.own[end] -= 1
        if self.own[end] == 0 and self.known.file >= 0:
            set_prospect(self.known.file, end, False)
        pthread_mutex_unlock(&mutex)

    # ---- with the mutex ----

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
        """Conclude nothing any longer, in this process. Its locks stay, so that other processes do not conclude
        anything either: a child that is forked now has them, too."""
        self.is_unknown = True
        if self.kept < 0:
            self.kept, self.known.file = self.known.file, -1

    # ---- passing on ----

    cdef int passed_file(self, object ends) noexcept:
        """An open file with the locks of these ends; -1 if they cannot be set."""
        cdef int file
        pthread_mutex_lock(&mutex)
        self.post()
        file = -1 if self.is_unknown else reopen(self.descriptor)
        for end in <list>ends:
            if file >= 0 and not set_prospect(file, end, True):
                close(file)
                file = -1
        if file < 0:
            self.give_up()
        pthread_mutex_unlock(&mutex)
        return file

    cdef object pass_on(self, object ends, object come_back):
        """The open file that accompanies pickled ends, for `adopt`; None if the locks cannot be set. ``come_back()`` is
        called if the process that was to get them does not start."""
        from multiprocessing import context
        cdef int file
        forget_all_arrived()
        file = self.passed_file(ends)
        if file < 0:
            return None
        owner = Descriptor(int, file)
        passed = passed_on(owner.fd)
        popen = context.get_spawning_popen()
        if popen is None:
            owner.close()              # it was duplicated
        else:
            self.travelling.append((owner, weakref.ref(popen), vars(popen), come_back))
        return passed

    cdef int forget_arrived(self) except -1:
        """Close the open files of processes that have started, or never will."""
        for one in self.travelling[:]:
            owner, popen, attributes, come_back = one
            has_started = attributes.get("pid") is not None
            if has_started or popen() is None:
                try:
                    self.travelling.remove(one)
                except ValueError:     # another thread has removed it
                    continue
                if not has_started:
                    come_back()        # before the file is closed: a process has the lock at every moment
                owner.close()
        return 0

    cdef int adopt(self, object passed) except -1:
        """Take over the open file that accompanied ends which arrived here."""
        cdef int file = above_standard(passed.detach()) if passed is not None else -1
        cdef int i
        pthread_mutex_lock(&mutex)
        if file < 0:
            self.give_up()
        elif self.is_unknown and self.kept < 0:
            self.kept = file
        elif self.known.file >= 0 or self.is_unknown:
            close(file)
        else:
            self.known.file = file
            for i in range(self.count):
                if self.own[i] and not set_prospect(file, i, True):
                    self.give_up()
                    break
        pthread_mutex_unlock(&mutex)
        return 0


@cython.final
cdef class Passage:
    """The way of an object that any number of processes may have, to one more: it counts as a prospect from here on.

    It is pickled after the memory: where that is refused, nothing is left behind.
    """

    def __init__(self, Prospects prospects not None):
        self.prospects = prospects

    def __reduce__(self):
        if self.prospects is None:
            raise TypeError("made when an object is pickled")
        return _itself, (self.prospects.pass_on([0], _stay),)


def _itself(passed):
    return passed


def _stay():
    """It was passed on to a process that did not start: this one has it as before."""


cdef int arrive(Prospects prospects, object passed) except -1:
    """Adopt what a `Passage` has passed on; nothing if the object was copied in this process, not pickled."""
    if type(passed) is not Passage:
        prospects.adopt(passed)
    return 0


cdef Prospects prospects_of(object segment, int count):
    """The prospects of the ends in a segment, made at the first call."""
    found = by_segment.get(weakref.ref(segment))
    if found is None:
        found = by_segment[weakref.ref(segment, by_segment.pop)] = Prospects(segment.descriptor, count)
    return found


# ---- looking ----

cdef bint can_be_taken(const prospects_t *known, int64_t end, bint waits_for_ever) noexcept nogil:
    """Whether a process may still take an end that none had taken a moment ago. Asks the kernel.

    ``waits_for_ever``: the calling thread waits for that end without a timeout, and does not take it itself.
    """
    if known == NULL or known.file < 0 or known.own[end] > 0 and not waits_for_ever:
        return True
    return is_held_elsewhere(known.file, end) or known.own[end] > 0 and other_threads_may_use_ends()


cdef bint other_threads_may_use_ends() noexcept nogil:
    """Whether this process has another thread than the calling one that may call this library: one of Python's, or one
    of C that may call Python."""
    cdef DIR *threads = opendir("/proc/self/task")
    cdef dirent *found
    cdef int32_t own = syscall(SYS_gettid), thread
    cdef bint may = threads == NULL
    while not may:
        found = readdir(threads)
        if found == NULL:
            break
        thread = atoi(found.d_name)
        may = thread != 0 and thread != own and not is_older(thread) and not is_service(thread)    # 0: "." and ".."
    if threads != NULL:
        closedir(threads)
    return may


cdef bint is_older(int32_t thread) noexcept nogil:
    cdef int i
    for i in range(nolder):
        if older[i] == thread:
            return True
    return False


cdef bint is_service(int32_t thread) noexcept nogil:
    """Whether a thread is one of shmring's, which use no ends by themselves (core/c/thread.h), or has ended."""
    cdef char[40] path
    cdef char[8] name
    cdef bint is_ours
    snprintf(path, sizeof(path), "/proc/self/task/%d/comm", thread)
    cdef int file = open(path, O_RDONLY | O_CLOEXEC)
    if file < 0:
        return errno == ENOENT
    is_ours = read(file, name, sizeof(name)) == sizeof(name) and memcmp(name, b"shmring-", sizeof(name)) == 0
    close(file)
    return is_ours


cdef int forget_all_arrived() except -1:
    for prospects in list(by_segment.values()):
        (<Prospects>prospects).forget_arrived()
    return 0


def _before_fork():
    cdef void *at
    forget_all_arrived()
    pthread_mutex_lock(&mutex)
    at = first
    while at != NULL:
        if (<Prospects>at).has_own():
            (<Prospects>at).post()
            if not (<Prospects>at).is_unknown:
                (<Prospects>at).heir = (<Prospects>at).locked()
                if (<Prospects>at).heir < 0:
                    (<Prospects>at).give_up()
        at = (<Prospects>at).next
    pthread_mutex_unlock(&mutex)


def _after_fork_in_parent():
    cdef void *at
    pthread_mutex_lock(&mutex)
    at = first
    while at != NULL:
        if (<Prospects>at).heir >= 0:
            close((<Prospects>at).heir)
            (<Prospects>at).heir = -1
        at = (<Prospects>at).next
    pthread_mutex_unlock(&mutex)


def _after_fork_in_child():
    global nolder
    cdef void *at = first
    pthread_mutex_init(&mutex, NULL)   # its holder was a thread of the parent
    nolder = 0
    for prospects in list(by_segment.values()):
        (<Prospects>prospects).travelling.clear()      # those are for other children
    while at != NULL:
        if (<Prospects>at).known.file >= 0:
            close((<Prospects>at).known.file)
        (<Prospects>at).known.file = (<Prospects>at).heir
        (<Prospects>at).heir = -1
        at = (<Prospects>at).next


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
