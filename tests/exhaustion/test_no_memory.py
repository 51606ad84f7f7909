"""Too little memory: wherever the kernel refuses it, all ranks raise an error that names it; nothing else is lost.

Refusals come from `shmring.core.memory.syscalls.fault` (any of them, at will), from a small /dev/shm, and from
RLIMIT_AS.
"""

import contextlib
import errno
import os
import resource
import time

import numpy as np
import pytest
from support.collective_checks import SMALL, works
from support.emulation import needs_address_limit
from support.harness import PATIENCE, run_processes, run_ranks, start_processes
from support.limits import address_space_nbytes, limited
from support.namespaces import enter, needs_mount, room
from support.on_ranks import on_ranks

import shmring
from shmring.collectives.bootstrap import rendezvous
from shmring.core.memory import syscalls
from shmring.errors import MessageTimeoutError, OutOfSharedMemoryError, SegmentError


def refuse(call, error, at=1):
    """From now on the ``at``-th ``call`` of this process fails; the list that is returned then has one entry."""
    refused = []
    left = at

    def fault(name):
        nonlocal left
        left -= name == call
        if name == call and left == 0:
            refused.append(name)
            raise OSError(error, os.strerror(error))

    syscalls.fault = fault
    return refused


def kind_of(error):
    return type(error).__name__


def stay_for_all():
    """A rank that fails stays for those that come by now, however late the machine lets them come."""
    rendezvous.LINGER_S = 60 * PATIENCE


# -- refused at each segment of each kind -----------------------------------------------------------------------------


def meet_with_a_refusal(rank, session, size, victim, number):
    stay_for_all()
    if rank == victim:
        refuse("posix_fallocate", number)
    try:
        with shmring.init(rank=rank, size=size, session=session, **SMALL) as comm:
            return works(comm)
    except OutOfSharedMemoryError as error:
        return error.needed, str(error)
    finally:
        syscalls.fault = None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_rank_without_memory_for_its_outbox_is_named_by_all_at_once(size, number, seed):
    victim = size // 2
    results = run_processes(size, meet_with_a_refusal, f"refused-{seed}-{size}-{number}", size, victim, number)
    assert len({needed for needed, _ in results}) == 1
    assert results[0][0] > 4 * 4096
    for rank, (_, text) in enumerate(results):
        assert ("cannot reserve" in text) == (rank == victim or "rank" in text)
        assert (f"rank {victim}" in text) == (rank != victim), text


def meet_without_room_for_a_notice(rank, session):
    if rank == 1:
        syscalls.fault = lambda call: refuse_all(call)
    with shmring.init(rank=rank, size=2, session=session, rendezvous_timeout=0.5, **SMALL):
        pass


def refuse_all(call):
    if call == "posix_fallocate":
        raise OSError(errno.ENOSPC, "No space left on device")


def test_without_room_for_a_failure_notice_the_others_wait_no_longer_than_their_timeout(seed):
    spared, struck = start_processes(2, meet_without_room_for_a_notice, f"no-page-{seed}").outcomes()
    assert kind_of(struck.error) == "OutOfSharedMemoryError"
    assert kind_of(spared.error) == "RendezvousTimeoutError"
    assert spared.error.missing == (1,)


def make_with_a_refusal(comm, what, victim):
    stay_for_all()
    make = MAKERS[what]
    if comm.rank == victim:
        refuse("posix_fallocate", errno.ENOSPC)
    try:
        make(comm)
        outcome = "made"
    except OutOfSharedMemoryError as error:
        outcome = str(error)
    syscalls.fault = None
    assert works(comm)
    return outcome, make(comm)


def make_group(make):
    def made(comm):
        with make(comm) as group:
            return works(group)

    return made


def make_array(make):
    def made(comm):
        x = make(comm)
        x[...] = 1
        comm.barrier()
        return bool((comm.all_reduce(np.array(x)) == comm.size).all())

    return made


MAKERS = {
    "split": make_group(lambda comm: comm.split(0)),
    "subgroup": make_group(lambda comm: comm.subgroup(range(comm.size))),
    "dup": make_group(lambda comm: comm.dup()),
    "shrink": make_group(lambda comm: comm.shrink()),
    "empty": make_array(lambda comm: comm.empty(3000)),
    "array": make_array(lambda comm: comm.array(np.ones(3000))),
}


@pytest.mark.sample(10)
@pytest.mark.parametrize("what", MAKERS)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_refused_memory_for_a_group_or_an_array_is_one_error_on_all_and_the_parent_stays_usable(n, what):
    victim = n - 1
    for rank, (outcome, works_now) in enumerate(run_ranks(n, make_with_a_refusal, what, victim, init=SMALL)):
        assert "cannot reserve" in outcome, outcome
        assert (f"rank {victim}" in outcome) == (rank != victim), outcome
        assert works_now


@pytest.mark.parametrize("root", [0, 1])
@on_ranks(2, init=SMALL)
def test_refused_memory_for_a_shared_result_at_the_root_is_an_error_on_all(comm, root):
    if comm.rank == root:
        refuse("posix_fallocate", errno.ENOSPC)
    with pytest.raises(OutOfSharedMemoryError, match="cannot reserve"):
        comm.shared_result(1000, root=root)
    syscalls.fault = None
    result = comm.shared_result(1000, root=root)
    comm.all_reduce(np.ones(1000), result)
    assert float(result.sum()) == 2000.0


def send_with_a_refusal(comm, count, call):
    x = np.arange(count, dtype=np.int32)
    if comm.rank == 0:
        refuse("posix_fallocate", errno.ENOSPC)
        for _ in range(2):  # refused again at the second request
            with pytest.raises(OutOfSharedMemoryError, match="cannot reserve") as caught:
                getattr(comm, call)(x, 1)
            assert caught.value.needed > 0
            refuse("posix_fallocate", errno.ENOSPC)
        syscalls.fault = None
    else:
        with pytest.raises(MessageTimeoutError):
            comm.recv(np.empty_like(x), 0, timeout=0.2)
    assert works(comm)
    if comm.rank == 0:
        comm.send(x, 1)
        return True
    out = np.empty_like(x)
    comm.recv(out, 0)
    return np.array_equal(out, x)


@pytest.mark.parametrize("call", ["send", "isend"])
@pytest.mark.parametrize("count", [1, 100_000])
def test_refused_memory_for_a_pair_queue_sends_nothing_and_the_message_can_be_sent_later(count, call):
    assert run_ranks(2, send_with_a_refusal, count, call) == [True, True]


# -- a small /dev/shm -------------------------------------------------------------------------------------------------


def in_room(rank, pid, fn, *args):
    stay_for_all()
    enter(pid)
    return fn(rank, *args)


def work_in_a_small_shm(rank, size, session, settings):
    try:
        with shmring.init(rank=rank, size=size, session=session, rendezvous_timeout=20 * PATIENCE, **settings) as comm:
            assert works(comm)
            with pytest.raises(OutOfSharedMemoryError, match="cannot reserve") as caught:
                comm.empty(80 << 20, np.uint8)
            assert works(comm)
            # Pair queues reserve memory at their first use: as many as there is room for.
            sent = 0
            try:
                for peer in range(size):
                    if peer != rank:
                        comm.send(np.array([rank]), peer)
                        sent += 1
            except OutOfSharedMemoryError:
                pass
            has_sent = comm.all_gather(np.array([peer != rank and sent > peer - (peer > rank) for peer in range(size)]))
            for peer in range(size):
                if has_sent[peer, rank]:
                    received = np.empty(1, int)
                    comm.recv(received, peer)
                    assert received[0] == peer
            assert works(comm)
            return caught.value.needed, sent
    except OutOfSharedMemoryError as error:
        return error.needed, str(error)


@needs_mount
@pytest.mark.parametrize("size", [2, 8])
def test_docker_s_64_mib_of_shared_memory_suffice_for_eight_ranks_and_more_is_refused(size, seed):
    with room("64m") as place:
        results = run_processes(size, in_room, place.pid, work_in_a_small_shm, size, f"docker-{seed}", {})
        assert place.names() == []
    for needed, sent in results:
        assert needed == (80 << 20) + 4096
        assert sent == size - 1


@needs_mount
def test_more_ranks_than_fit_into_64_mib_all_get_the_error(seed):
    large = {"slot_nbytes": 1 << 18}  # where caches are small, 32 ranks' outboxes would fit
    with room("64m") as place:
        results = run_processes(32, in_room, place.pid, work_in_a_small_shm, 32, f"crowd-{seed}", large)
        assert place.names() == []
    # A rank that joined after the first had left has the error from others.
    assert all("cannot reserve" in text or "left for lack of memory" in text for _, text in results)


@needs_mount
def test_a_shm_of_one_mib_is_an_error_with_the_default_outbox_and_enough_for_a_small_one(seed):
    with room("1m") as place:
        results = run_processes(2, in_room, place.pid, work_in_a_small_shm, 2, f"tiny-{seed}", {})
        assert place.names() == []
        assert all("cannot reserve" in text and "--shm-size" in text for _, text in results)
        results = run_processes(2, in_room, place.pid, work_in_a_small_shm, 2, f"tiny-{seed}", SMALL)
        assert [sent for _, sent in results] == [1, 1]
        assert place.names() == []


# -- RLIMIT_AS --------------------------------------------------------------------------------------------------------


def with_more(nbytes):
    """Within a block this process may map only so many further bytes."""
    return limited(resource.RLIMIT_AS, address_space_nbytes() + nbytes)


def grow_within_a_limit(comm, what):
    stay_for_all()
    make = MAKERS[what]
    with pytest.raises(OutOfSharedMemoryError) as caught:
        if comm.rank == 1:
            with with_more(1 << 20):
                make(comm)
        else:
            make(comm)
    assert works(comm)
    assert make(comm)
    return str(caught.value)


@needs_address_limit
@pytest.mark.parametrize("what", ["split", "dup", "big array"])
def test_an_address_space_limit_is_one_error_on_all_and_the_parent_stays_usable(what):
    first, second = run_ranks(2, grow_within_a_limit, what)
    assert "cannot map" in second
    assert "RLIMIT_AS" in second
    assert "rank 1" in first


def join_late_a_rank_without_room(comm, more):
    with pytest.raises((OutOfSharedMemoryError, shmring.RendezvousError)) as caught:
        if comm.rank == 1:
            with with_more(more):
                comm.dup()
        else:
            time.sleep(0.3)
            comm.dup()
    assert works(comm)
    assert works(comm.dup())
    return str(caught.value)


@needs_address_limit
@pytest.mark.parametrize("more", [1 << 20, 7 << 20])
def test_a_rank_that_cannot_map_a_segment_stays_until_a_late_rank_has_seen_its_failure(more):
    first, second = run_ranks(2, join_late_a_rank_without_room, more, init={"slot_nbytes": 1 << 20})
    assert "cannot map" in second
    assert "rank 1" in first


MAKERS["big array"] = make_array(lambda comm: comm.empty(4 << 20, np.uint8))


def init_within_a_limit(rank, session, more, timeout):
    try:
        with with_more(more) if rank == 1 else contextlib.nullcontext():
            comm = shmring.init(rank=rank, size=2, session=session, rendezvous_timeout=timeout)
    except (OutOfSharedMemoryError, SegmentError, MemoryError, shmring.RendezvousError) as error:
        return kind_of(error)
    with comm:
        return works(comm)


@needs_address_limit
def test_at_any_address_space_limit_during_init_both_ranks_return_and_nothing_is_left(seed):
    seen = set()
    for more in [*range(0, 8 << 20, 1 << 20), 1 << 30]:
        for timeout in (1, 20 * PATIENCE):  # the first may be too short for two ranks to come
            spared, struck = run_processes(2, init_within_a_limit, f"space-{seed}-{more}-{timeout}", more, timeout)
            if (spared is True) == (struck is True) and struck != "RendezvousTimeoutError":
                break
        seen.add((spared, struck))
        assert (spared is True) == (struck is True), (more, spared, struck)
    assert (True, True) in seen
    assert len(seen) > 1
