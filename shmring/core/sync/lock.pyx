"""Locks between processes that survive their holders.

The lock is a word: 0, or the id of the process that has it. A process that takes locks in a memory is a *member* there:
its keeper holds a liveness (core/sync/liveness.pyx) in a table beside the locks, for as long as the process lives. Its
id is the number of that liveness, and the turn, as a later process takes the liveness of a dead one. A process that
finds the lock taken loads the liveness of the holder: where it is dead, or another's by now, the process swaps its own
id for the holder's, and learns that it has inherited the lock.

A thread that waits sleeps as all waiters do (core/c/backoff.h). But here several may sleep with one waiter word: a
waiter that has slept leaves the word at 1 as it goes, with the lock or without, so the next release wakes another one.
A post that is lost with a process that was killed is made up for by the tick of the others.
"""

from libc.errno cimport EBADMSG, EBUSY, EUSERS
from libc.stdint cimport UINT32_MAX

import os

from shmring.core.c.atomics cimport compare_swap_u64, load_acquire_u64, load_relaxed_u64, store_relaxed_u64
from shmring.core.c.faults cimport fault_point
from shmring.core.c.layout cimport SHMRING_MEMBERS_MAX
from shmring.core.base.signals cimport check_signals
from shmring.core.sync.backoff cimport (
    BROKEN, CHECK, SLEEPS, TICK, back_off, be_patient, end_wait, is_past_deadline, patience_t, sem_post, sleeper_t,
    take_sleeper,
)
from shmring.core.sync.liveness cimport ALIVE, await_last_stores, hold_liveness, liveness_state
from shmring.core.sync.long_waits cimport is_note_due, notes_t, write_note

from shmring.errors import SegmentError


# ---- members ---------------------------------------------------------------------------------------------------------

# 0 or an errno.
cdef int join(member_t *me) noexcept nogil:
    cdef uint32_t i
    cdef int error
    for i in range(SHMRING_MEMBERS_MAX):
        if liveness_state(&me.table[i]) == ALIVE:
            continue
        error = hold_liveness(&me.table[i])
        if error == EBUSY:             # another process was quicker
            continue
        if error == 0:
            me.id = <uint64_t>me.table[i].turn << 32 | (i + 1)
            me.joined = fork_generation() + 1
        return error
    return EUSERS


cdef bint is_member(uint64_t id) noexcept nogil:
    return 1 <= (id & UINT32_MAX) <= SHMRING_MEMBERS_MAX


# The state first: a process that takes the liveness later has counted its turn before it is alive.
cdef bint is_gone(shmring_liveness *table, uint64_t id) noexcept nogil:
    cdef shmring_liveness *its = &table[(id & UINT32_MAX) - 1]
    return liveness_state(its) != ALIVE or its.turn != <uint32_t>(id >> 32)


cdef int holder_pid(const shmring_lock *lock, const shmring_liveness *table) noexcept nogil:
    """The pid of the holder in its own PID namespace, 0 if there is none, from copies: for observers."""
    cdef uint64_t id = lock.holder
    return table[(id & UINT32_MAX) - 1].pid if is_member(id) else 0


# ---- taking ----------------------------------------------------------------------------------------------------------

cdef int lock_further(shmring_lock *lock, member_t *me) noexcept nogil:
    """The rest of `lock_try`."""
    cdef uint64_t found
    cdef int error = 0 if me.joined == fork_generation() + 1 else join(me)
    while error == 0:
        # SYNC locked (meets: lock_release)
        if compare_swap_u64(&lock.holder, 0, me.id):
            return LOCK_HELD
        found = load_acquire_u64(&lock.holder)
        if found == 0:
            continue
        if not is_member(found):
            return -EBADMSG
        if not is_gone(me.table, found):
            return LOCK_LATE
        await_last_stores()
        fault_point("inherit")
        return LOCK_INHERITED if compare_swap_u64(&lock.holder, found, me.id) else LOCK_LATE
    return -error


cdef void wake_next(shmring_lock *lock) noexcept nogil:
    if take_sleeper(&lock.waiting, 1):
        fault_point("unlocked")
        sem_post(&lock.woken)


cdef void leave_word(shmring_lock *lock, int outcome) noexcept nogil:
    """End the part of a wait in which this thread has slept: others may sleep, too, whose word it has taken back."""
    store_relaxed_u64(&lock.waiting, 1)
    if not is_locked(outcome):         # else the release of this thread wakes the next one
        before_wake()
        if load_relaxed_u64(&lock.holder) == 0:
            wake_next(lock)


cdef int lock_step(shmring_lock *lock, member_t *me, patience_t *patience) noexcept nogil:
    """A step of waiting, LOCK_UNREADY after a tick: let Python handle signals and call again."""
    cdef sleeper_t sleeper = sleeper_t(word=&lock.waiting, what=1, wake=&lock.woken, next=NULL, spin_ns=0, yields=0,
                                       tick_ns=TICK_NS, spin=NULL, looks=0)
    cdef int step, outcome
    while True:
        outcome = lock_try(lock, me)
        if outcome != LOCK_LATE:
            break
        step = back_off(patience, &sleeper)
        if step == BROKEN:
            outcome = -EBADMSG
            break
        if step >= CHECK and is_past_deadline(patience):
            outcome = lock_try(lock, me)
            break
        if step == TICK:
            leave_word(lock, LOCK_UNREADY)
            return LOCK_UNREADY
    if patience.stage == SLEEPS:
        end_wait(patience, &sleeper)
        leave_word(lock, outcome)
    return outcome


cdef int lock_within(shmring_lock *lock, member_t *me, int64_t ns) noexcept nogil:
    """`lock_try`, again and again for so long, without a look at signals."""
    cdef patience_t patience
    cdef int outcome = LOCK_UNREADY
    be_patient(&patience, ns)
    while outcome == LOCK_UNREADY:
        outcome = lock_step(lock, me, &patience)
    return outcome


cdef bint await_lock(shmring_lock *lock, member_t *me, int outcome, int64_t timeout_ns, memory) except -1:
    """The rest of `take_lock`, after the ``outcome`` of its first attempt."""
    cdef patience_t patience
    cdef notes_t notes = notes_t(0, 0)
    if outcome == LOCK_LATE and timeout_ns != 0:
        be_patient(&patience, timeout_ns)
        outcome = LOCK_UNREADY
        while outcome == LOCK_UNREADY:
            with nogil:
                outcome = lock_step(lock, me, &patience)
            if outcome == LOCK_UNREADY:
                check_signals()
                if memory.writes_notes and is_note_due(&notes, patience.began_ns):
                    write_note(f"{memory.title} is in use by another process or thread, which waits in the same call",
                               patience.began_ns)
    if outcome == -EBADMSG:
        raise SegmentError(f"{memory.title} is corrupted: its lock, or the semaphore of that, is none")
    if outcome == -EUSERS:
        raise OSError(EUSERS, f"{memory.title} is used by {SHMRING_MEMBERS_MAX} processes already")
    if outcome < 0:
        raise OSError(-outcome, f"cannot lock {memory.title}: {os.strerror(-outcome)}")
    return is_locked(outcome)
