"""Rendezvous of real processes: all ranks, no other rank, late, dead and duplicate ranks, and ranks that disagree."""

import errno
import math
import os
import random
import signal
import time

import pytest
from support.children import in_child, status_of
from support.harness import PATIENCE, is_stopped, report, run_processes, start_processes
from support.on_ranks import on_processes
from support.segments import Squatter, page, standing

import shmring
from shmring.collectives.bootstrap import rendezvous as rendezvous_module
from shmring.collectives.bootstrap.rendezvous import LINGER_S, rendezvous
from shmring.collectives.engine.outbox import prepare_outbox
from shmring.core.memory import names, syscalls
from shmring.core.memory.segment import ARRAY, OUTBOX, create, segment_name, try_attach
from shmring.core.memory.sweep import leftovers, sweep
from shmring.errors import OutOfSharedMemoryError, PeerLostError, RendezvousError, RendezvousTimeoutError, SegmentError

NBYTES = 16 << 10


def wait_for_every_lock():
    """In a rank: the one that has the lock of a name is late, and not stopped."""
    names.NAME_PATIENCE_S = names.UNLINK_PATIENCE_S = names.CLAIM_PATIENCE_S = 60 * PATIENCE


def let_no_time_pass_before(count):
    """In a rank: no time is over before ``count`` ranks, this one included, have found each other.

    The last bytes of its header, which nothing else uses, are how many it has found, and whether that is enough.
    """
    check_clock = rendezvous_module._Rendezvous.check_clock

    def check_clock_of_all(self, now):
        memoryview(self.own.mapping)[4094:4096] = bytes([len(self.present), len(self.present) >= count])
        if all(memoryview(segment.mapping)[4095] for segment in self.present.values()):
            check_clock(self, now)

    rendezvous_module._Rendezvous.check_clock = check_clock_of_all


def attend(rank, session, size, late_s=0.0, linger_s=LINGER_S, present=0, **changes):
    """Meet; what all ranks have written, and which names stand then. ``present``: see `let_no_time_pass_before`."""
    rendezvous_module.LINGER_S = linger_s
    wait_for_every_lock()
    if present:
        let_no_time_pass_before(present)
    time.sleep(late_s)

    def prepare(segment):
        memoryview(segment.mapping)[4096:4100] = bytes([rank]) * 4

    arguments = {"session": session, "rank": rank, "size": size, "nbytes": NBYTES, "prepare": prepare}
    segments = rendezvous(**arguments | {"timeout": 60 * PATIENCE} | changes)
    left = standing(session)
    seen = [bytes(memoryview(segment.mapping)[4096:4100]) for segment in segments]
    nonces = [segment.header.nonce for segment in segments]
    for segment in segments:
        segment.close()
    return seen, left, nonces


def attend_as(rank, plans):
    """`attend` with arguments that differ from process to process."""
    return attend(**plans[rank])


def come(plans):
    """Run one process for each plan; how each came out."""
    outcomes = start_processes(len(plans), attend_as, plans).outcomes()
    assert not any(outcome.stuck for outcome in outcomes), [outcome.stuck for outcome in outcomes]
    return outcomes


def plans_for(session, size, ranks=None, **common):
    return [{"rank": rank, "session": session, "size": size, **common} for rank in (ranks or range(size))]


# -- everybody comes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 16])
def test_all_ranks_see_what_all_prepared_and_no_name_is_left(session, size):
    results = run_processes(size, attend, session, size)
    assert all(seen == [bytes([rank]) * 4 for rank in range(size)] for seen, _, _ in results)
    assert all(left == [] for _, left, _ in results)
    assert len({tuple(nonces) for _, _, nonces in results}) == 1


def test_ranks_may_come_long_after_one_another_in_any_order(session):
    plans = [{"rank": r, "session": session, "size": 3, "late_s": late} for r, late in ((2, 0.0), (0, 0.2), (1, 0.4))]
    assert all(outcome.ok and outcome.result[1] == [] for outcome in come(plans))


def meet_again_and_again(rank, session, size, times):
    return [attend(rank, session, size)[1:] for _ in range(times)]


def test_one_session_can_meet_again_and_again_without_pause(session):
    # A rank that is still leaving one rendezvous must neither take names of the next away nor be taken for part of it.
    by_rank = run_processes(3, meet_again_and_again, session, 3, 40)
    for held in zip(*by_rank, strict=True):
        assert len({tuple(nonces) for _, nonces in held}) == 1
    nonces = {nonce for _, rendezvous_nonces in by_rank[0] for nonce in rendezvous_nonces}
    assert len(nonces) == 3 * 40


def test_segments_are_returned_by_rank_and_close_to_nothing(session):
    (segment,) = rendezvous(session=session, rank=0, size=1, nbytes=NBYTES, kind=ARRAY, params=(1, 2))
    assert (segment.rank, segment.nbytes, segment.header.kind) == (0, NBYTES, ARRAY)
    assert segment.header.params == (1, 2, 0, 0)
    assert standing(session) == []
    segment.close()
    assert segment.mapping.closed


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_its_group_is_a_value_error(session, rank, size):
    with pytest.raises(ValueError, match=f"rank={rank}"):
        rendezvous(session=session, rank=rank, size=size, nbytes=NBYTES)


# -- somebody does not come -------------------------------------------------------------------------------------------


def test_a_missing_rank_is_named_by_all_and_nothing_is_left(session):
    outcomes = come(plans_for(session, 5, ranks=[0, 2], present=2, timeout=0.4))
    for outcome in outcomes:
        assert isinstance(outcome.error, RendezvousTimeoutError)
        assert isinstance(outcome.error, TimeoutError)
        assert outcome.error.missing == (1, 3, 4)
        assert "ranks 1, 3-4 never came" in str(outcome.error)
    assert standing(session) == []


def test_timeout_zero_looks_once(session):
    with pytest.raises(RendezvousTimeoutError, match="rank 1 never came"):
        rendezvous(session=session, rank=0, size=2, nbytes=NBYTES, timeout=0)
    rendezvous(session=session, rank=0, size=1, nbytes=NBYTES, timeout=0)[0].close()


def give_up_then_meet(rank, session, path):
    if rank == 0:
        with pytest.raises(RendezvousTimeoutError):
            attend(0, session, 2, timeout=0.05)
        assert standing(session) == []
        path.touch()
    while not path.exists():
        time.sleep(0.005)
    return attend(rank, session, 2)


def test_after_a_timeout_the_same_rank_may_try_again(session, tmp_path):
    assert all(left == [] for _, left, _ in run_processes(2, give_up_then_meet, session, tmp_path / "gave up"))


def test_a_rank_without_a_timeout_notices_that_the_timeout_of_another_has_passed(session):
    plans = plans_for(session, 3, ranks=[0, 1], present=2)
    plans[0]["timeout"], plans[1]["timeout"] = 0.5, None
    tired, patient = come(plans)
    assert tired.error.missing == patient.error.missing == (2,)
    assert "the timeout is over" in str(tired.error)
    assert "rank 0 reached its timeout" in str(patient.error)


# -- somebody dies ----------------------------------------------------------------------------------------------------


def wait_for_ever(rank, session, size, invisible=()):
    """Meet without a timeout, and report each rank that is found; the ranks in ``invisible`` are never found."""
    invisible = [segment_name(session, f"r{r}") for seeker, r in invisible if seeker == rank]
    really_attach = rendezvous_module.try_attach

    def try_attach(name, **expected):
        segment = None if name in invisible else really_attach(name, **expected)
        if segment is not None:
            report(f"found {segment.rank}")
        return segment

    rendezvous_module.try_attach = try_attach
    try:
        return attend(rank, session, size, timeout=None)
    finally:
        rendezvous_module.try_attach = really_attach


def test_a_rank_that_dies_once_found_is_named_without_any_timeout(session):
    gang = start_processes(2, wait_for_ever, session, 3)  # rank 2 never comes
    gang.wait_for("found 1", ranks=[0])
    pid = gang.pids[1]
    gang.kill(1)
    survivor, victim = gang.outcomes()
    assert victim.signal == signal.SIGKILL
    assert isinstance(survivor.error, PeerLostError), survivor
    assert (survivor.error.rank, survivor.error.pid) == (1, pid)
    assert "rank 1 (pid" in str(survivor.error)
    assert standing(session) == []


def test_a_rank_that_dies_after_it_has_found_all_ranks_is_noticed_too(session):
    # 0 and 1 have everybody, 2 has not found 1 yet, and never will.
    gang = start_processes(3, wait_for_ever, session, 3, [(2, 1)])
    for rank in (0, 1):
        for other in {0, 1, 2} - {rank}:
            gang.wait_for(f"found {other}", ranks=[rank])
    gang.wait_for("found 0", ranks=[2])
    gang.kill(1)
    zero, _, two = gang.outcomes()
    assert isinstance(zero.error, PeerLostError), zero
    assert zero.error.rank == 1
    assert isinstance(two.error, RendezvousError), two
    assert "rank 0 (pid" in str(two.error)
    assert "not found so far: rank 1" in str(two.error)
    assert standing(session) == []


def announce_and_wait(rank, session, size):
    attend(rank, session, size, timeout=None, prepare=lambda segment: report("here"))


def test_an_earlier_job_of_the_same_session_that_was_killed_while_rendezvous_is_no_obstacle(session):
    gang = start_processes(3, announce_and_wait, session, 4)
    gang.wait_for("here")
    for rank in range(3):  # else one that lives unlinks the name of one that is dead
        gang.stop(rank)
    while not all(map(is_stopped, gang.pids)):
        time.sleep(0.001)
    for rank in range(3):
        gang.kill(rank)
    gang.outcomes()
    assert len(standing(session)) == 3
    results = run_processes(4, attend, session, 4)
    assert all(left == [] for _, left, _ in results)


def test_a_rank_that_died_unseen_may_be_started_anew(session):
    gang = start_processes(1, announce_and_wait, session, 2)
    gang.wait_for("here")
    gang.kill(0)
    gang.outcomes()
    assert all(seen == [b"\0" * 4, b"\1" * 4] for seen, _, _ in run_processes(2, attend, session, 2))


def meet_and_wait(rank, session, size):
    wait_for_every_lock()
    segments = rendezvous(session=session, rank=rank, size=size, nbytes=NBYTES)
    report("met")
    time.sleep(1000)
    del segments


def test_sigkill_of_all_ranks_once_they_have_met_leaves_nothing(session):
    gang = start_processes(4, meet_and_wait, session, 4)
    gang.wait_for("met")
    for rank in range(4):
        gang.kill(rank)
    assert all(outcome.signal == signal.SIGKILL for outcome in gang.outcomes())
    assert standing(session) == []


def test_once_one_rank_has_met_nothing_is_left_whatever_happens_to_the_others(session):
    gang = start_processes(4, meet_and_wait, session, 4)
    gang.wait_for("met", ranks=[2])
    assert standing(session) == []
    for rank in range(4):
        gang.kill(rank)
    gang.outcomes()
    assert standing(session) == []


def stop_while_unlinking(rank, session, count):
    """Meet; rank 2 stops as it takes away the name that it comes to as number ``count``, before the others take any."""
    left = count

    def fault(call):
        nonlocal left
        left -= call == "shm_unlink"
        if left == 0:
            syscalls.fault = None
            signal.raise_signal(signal.SIGSTOP)

    def is_complete(self):
        complete = really_complete(self)
        while complete and not is_stopped(self.present[2].header.pid):
            time.sleep(0.001)
        return complete

    really_complete = rendezvous_module._Rendezvous.is_complete
    if rank == 2:
        syscalls.fault = fault
    else:
        rendezvous_module._Rendezvous.is_complete = is_complete
    segments = rendezvous(session=session, rank=rank, size=3, nbytes=NBYTES)
    report("met")
    while rank != 2 and is_stopped(segments[2].header.pid):
        time.sleep(0.001)
    wait_for_every_lock()  # one that is being killed still has it for a moment
    for segment in segments:
        segment.close()


@pytest.mark.sample(3)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("end", ["resume", "kill"])
def test_a_rank_that_stops_while_it_unlinks_names_stops_no_other(session, count, end):
    gang = start_processes(3, stop_while_unlinking, session, count)
    gang.wait_for("met", ranks=[0, 1])
    getattr(gang, end)(2)
    outcomes = gang.outcomes()
    assert all(outcome.ok for outcome in outcomes[:2]), outcomes
    # The first name that rank 2 unlinks is its own; if it dies there, the name remains for sweep().
    assert sweep(session) == ([segment_name(session, "r2")] if (end, count) == ("kill", 1) else [])
    assert standing(session) == []


def fail_while_unlinking(rank, session):
    """Meet; rank 2 sees that all have met, and fails. Rank 0 has seen it, too; rank 1 only looks when it is gone."""

    def fault(call):
        if call == "shm_unlink":
            syscalls.fault = None
            raise OSError(errno.EIO, "no luck")

    def is_complete(self):
        complete = really_complete(self)
        while complete and names.refers_to(self.present[2].name, self.present[2]._inode):
            time.sleep(0.001)
        return complete and (rank == 0 or really_complete(self))

    really_complete = rendezvous_module._Rendezvous.is_complete
    if rank == 2:
        syscalls.fault = fault
    else:
        rendezvous_module._Rendezvous.is_complete = is_complete
    rendezvous(session=session, rank=rank, size=3, nbytes=NBYTES)


def test_a_rank_that_fails_after_the_rendezvous_does_not_undo_it(session):
    # Some ranks may have seen the rendezvous complete. If the others now left, they would be reported as failed.
    zero, one, two = start_processes(3, fail_while_unlinking, session).outcomes()
    assert zero.ok, zero
    assert one.ok, one
    assert isinstance(two.error, SegmentError), two
    assert standing(session) == []


def attend_soon(rank, session, size):
    return attend(rank, session, size, timeout=0.4)


def test_whenever_a_rank_is_killed_the_others_come_to_an_end_and_the_next_rendezvous_is_whole(session, seed, long_run):
    chance = random.Random(seed)
    for _ in range(300 if long_run else 8):
        gang = start_processes(3, attend_soon, session, 3)
        victim = chance.randrange(3)
        time.sleep(chance.uniform(0, 0.02))
        gang.kill(victim)
        outcomes = gang.outcomes()
        assert not any(outcome.stuck for outcome in outcomes), [str(outcome) for outcome in outcomes]
        for outcome in outcomes:
            assert outcome.signal or outcome.ok or isinstance(outcome.error, (RendezvousError, PeerLostError)), outcome
        # Only the dead one can have left a name.
        assert [name for name in standing(session) if not name.endswith(f"-r{victim}")] == []
        assert all(left == [] for _, left, _ in run_processes(3, attend, session, 3))


# -- somebody is wrong ------------------------------------------------------------------------------------------------


def attend_twice(number, session, path):
    """Rank 0 in two processes, and rank 1 in a third one once one of these has been refused."""
    while number == 2 and not path.exists():
        time.sleep(0.005)
    try:
        return attend(number // 2, session, 2)
    except SegmentError:
        path.touch()
        raise


def test_of_two_processes_that_claim_one_rank_one_gets_an_error_and_the_others_connect(session, tmp_path):
    outcomes = start_processes(3, attend_twice, session, tmp_path / "refused").outcomes()
    refused = [outcome for outcome in outcomes if not outcome.ok]
    assert len(refused) == 1
    assert isinstance(refused[0].error, SegmentError)
    assert "same rank of it, running twice" in str(refused[0].error)
    assert all(outcome.result[1] == [] for outcome in outcomes if outcome.ok)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nbytes": 2 * NBYTES}, f"nbytes is {NBYTES} on ranks 0, 2, {2 * NBYTES} on rank 1"),
        ({"kind": ARRAY}, "kind is outbox on ranks 0, 2, array on rank 1"),
        ({"params": (8,)}, "params is (0, 0, 0, 0) on ranks 0, 2, (8, 0, 0, 0) on rank 1"),
        ({"size": 2}, "size is 3 on ranks 0, 2, 2 on rank 1"),
        ({"nbytes": 8192, "params": (1, 2)}, f"nbytes is {NBYTES} on ranks 0, 2, 8192 on rank 1; params is"),
    ],
    ids=["nbytes", "kind", "params", "size", "two things"],
)
def test_ranks_that_disagree_all_get_the_values_of_each(session, change, message):
    plans = plans_for(session, 3, linger_s=60 * PATIENCE)
    plans[1] |= change
    plans[2]["late_s"] = 0.1
    outcomes = come(plans)
    for outcome in outcomes:
        assert type(outcome.error) is RendezvousError, outcome
        assert message in str(outcome.error)
    assert standing(session) == []


def disagree_impatiently(rank, session):
    return attend(rank, session, 3, linger_s=0.2, present=2, nbytes=NBYTES << rank, timeout=None)


def test_a_disagreement_is_reported_even_if_a_rank_never_joins(session):
    for outcome in start_processes(2, disagree_impatiently, session).outcomes():
        assert f"nbytes is {NBYTES} on rank 0, {2 * NBYTES} on rank 1" in str(outcome.error)


def test_a_size_that_cannot_be_meant_is_not_searched_through(session):
    with create(segment_name(session, "r1"), NBYTES, kind=OUTBOX, rank=1, size=2**31 - 1) as liar:
        liar.announce()
        with pytest.raises(RendezvousError, match="size is 2 on rank 0, 2147483647 on rank 1"):
            rendezvous(session=session, rank=0, size=2, nbytes=NBYTES, timeout=0.2)


def test_what_is_not_to_be_trusted_under_a_peers_name_is_an_error_at_once(session):
    with Squatter(segment_name(session, "r1"), page(), mode=0o666), pytest.raises(SegmentError, match="mode 0666"):
        rendezvous(session=session, rank=0, size=2, nbytes=NBYTES, timeout=None)


# -- prepare ----------------------------------------------------------------------------------------------------------


def test_an_error_of_prepare_comes_out_and_nothing_is_left(session):
    def prepare(segment):
        raise LookupError("not today")

    with pytest.raises(LookupError, match="not today"):
        rendezvous(session=session, rank=0, size=1, nbytes=NBYTES, prepare=prepare)
    assert standing(session) == []


def test_what_prepare_returns_undoes_it_before_the_memory_goes_and_only_after_a_failure(session):
    undone = []

    def prepare(segment):
        memoryview(segment.mapping)[5000] = 9
        return lambda: undone.append(memoryview(segment.mapping)[5000])

    segments = rendezvous(session=session, rank=0, size=1, nbytes=NBYTES, prepare=prepare)
    segments[0].close()
    assert undone == []
    with pytest.raises(RendezvousTimeoutError):
        rendezvous(session=session, rank=0, size=2, nbytes=NBYTES, prepare=prepare, timeout=0)
    assert undone == [9]


def test_memory_with_a_view_survives_a_failed_rendezvous_until_the_view_is_released(session):
    views = []
    with pytest.raises(RendezvousTimeoutError):
        rendezvous(
            session=session,
            rank=0,
            size=2,
            nbytes=NBYTES,
            timeout=0,
            prepare=lambda segment: views.append(memoryview(segment.mapping)),
        )
    views[0][4096] = 1
    assert standing(session) == []
    views.clear()


# -- the kernel refuses -----------------------------------------------------------------------------------------------


def attend_with_fault(rank, session, fail_at):
    """Meet; in rank 1 the n-th system call fails. How it went, and whether so many calls were made."""
    left = fail_at

    def fault(call):
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(errno.EIO, f"no luck with {call}")

    syscalls.fault = fault if rank == 1 else None
    try:
        attend(rank, session, 2, timeout=0.1)
    except (RendezvousError, PeerLostError):
        return "left alone", left <= 0
    except SegmentError as error:
        return error.errno, left <= 0
    finally:
        syscalls.fault = None
    return "met", left <= 0


def test_whichever_system_call_of_a_rank_fails_all_end_and_nothing_is_left(session):
    for fail_at in range(1, 500):
        (spared, _), (struck, failed) = run_processes(2, attend_with_fault, session, fail_at)
        assert standing(session) == [], (fail_at, spared, struck)
        if not failed and struck == "met":
            break
        # Left alone without a fault: the other one's patience was at an end before this one was started.
        assert struck == (errno.EIO if failed else "left alone"), (fail_at, struck)
        assert spared in ("met", "left alone"), (fail_at, spared)
    assert not failed, "the list of calls did not end"
    assert fail_at > 15


def test_kinds_have_names(session):
    (segment,) = rendezvous(session=session, rank=0, size=1, nbytes=NBYTES, kind=OUTBOX)
    assert "outbox of 16384 bytes" in repr(segment)
    segment.close()


# -- a caller that ends the rendezvous early --------------------------------------------------------------------------


def test_check_gets_the_missing_ranks_and_what_it_raises_ends_the_rendezvous(session):
    calls = []

    def check(missing):
        calls.append(list(missing))
        if len(calls) == 3:
            raise LookupError("will never come")

    with pytest.raises(LookupError, match="will never come"):
        rendezvous(session=session, rank=1, size=3, nbytes=NBYTES, timeout=None, check=check)
    assert calls == [[0, 2]] * 3
    assert standing(session) == []


def lack_memory_once_found(rank, session, path):
    """Size 3 with two processes, so that one rank is always missing: none that would have to find rank 1 yet."""
    rendezvous_module.LINGER_S = 0.1

    def check_of_0(missing):
        if 1 not in missing:
            path.touch()

    def check_of_1(missing):
        if path.exists():
            raise OutOfSharedMemoryError("no room, on purpose", 1, 0)

    memory = {"nbytes": NBYTES + 8192, "sparse_nbytes": 8192}
    check = check_of_1 if rank else check_of_0
    rendezvous(session=session, rank=rank, size=3, timeout=None, check=check, **memory)


def test_a_rank_that_finds_one_without_memory_raises_the_same_error(session, tmp_path):
    for outcome in start_processes(2, lack_memory_once_found, session, tmp_path / "found").outcomes():
        assert type(outcome.error) is OutOfSharedMemoryError, outcome
        if outcome.rank == 0:
            assert "rank 1 left for lack of memory" in str(outcome.error)
            assert outcome.error.needed == NBYTES
    assert standing(session) == []


def test_a_rank_without_memory_stays_until_all_others_have_attached_and_no_longer(session, monkeypatch):
    own, other = (create(segment_name(session, f"r{r}"), NBYTES, kind=OUTBOX, rank=r, size=2) for r in range(2))
    undo = [prepare_outbox(segment.mapping) for segment in (own, other)]
    other.announce()
    ranks = rendezvous_module._Rendezvous(session, own, 0, None, None)
    ranks.store_reason(rendezvous_module.OUT_OF_MEMORY)
    pauses = []

    def pause(seconds):
        assert other.attached == rendezvous_module.ABSENT
        pauses.append(seconds)
        other.attached = ranks.fingerprint()

    monkeypatch.setattr(rendezvous_module, "LINGER_S", math.inf)
    monkeypatch.setattr(rendezvous_module.time, "sleep", pause)
    ranks.stay_attachable()
    assert len(pauses) == 1
    ranks.leave()
    for drop in undo:
        drop()
    other.close()


def leave_during_a_look(rank, session, path):
    """Rank 1 leaves while rank 0 is in `check`, which does not know of a death yet; it does at the next look."""

    def check_of_0(missing):
        if path.exists():
            raise PeerLostError("rank 2 died", 2, 0)
        if 1 not in missing:
            path.touch()
            while segment_name(session, "r1") in standing(session):
                time.sleep(0.001)

    def check_of_1(missing):
        if path.exists():
            raise PeerLostError("rank 2 died", 2, 0)

    check = check_of_1 if rank else check_of_0
    rendezvous(session=session, rank=rank, size=3, nbytes=NBYTES, timeout=None, check=check)


def test_a_rank_that_finds_one_that_left_looks_for_the_death_that_was_the_reason(session, tmp_path):
    for outcome in start_processes(2, leave_during_a_look, session, tmp_path / "leave").outcomes():
        assert type(outcome.error) is PeerLostError, outcome
    assert standing(session) == []


# -- what is not so ---------------------------------------------------------------------------------------------------


def attend_without_a_name(rank, session, size):
    """Rank 2 comes late; meanwhile another process unlinks the name of rank 1, which lives and is found by rank 0."""
    if rank == 2:
        own = segment_name(session, "r1")
        for name in (segment_name(session, "r0"), own):
            while (found := try_attach(name)) is None or memoryview(found.mapping)[4094] < 2:
                time.sleep(0.005)
        with names.opened(own) as fd:
            names.remove(own, names.inode_of(os.fstat(fd)))
        time.sleep(0.05)
        found.close()
    return attend(
        rank,
        session,
        size,
        present=2 if rank == 2 else 3,
        timeout=0.5,
        prepare=lambda segment: prepare_outbox(segment.mapping),
    )


def test_a_rank_whose_name_was_unlinked_is_not_taken_for_dead(session):
    outcomes = start_processes(3, attend_without_a_name, session, 3).outcomes()
    for outcome in outcomes:  # rank 2 cannot find rank 1
        assert isinstance(outcome.error, RendezvousTimeoutError)
        assert not isinstance(outcome.error, PeerLostError)


def test_a_rank_that_leaves_just_when_others_have_met_is_the_one_that_is_named(session):
    """Rank 1 gives up while rank 2 sees all attached: rank 2 unlinks its name, and is alive."""
    segments = [create(segment_name(session, f"r{r}"), NBYTES, kind=OUTBOX, rank=r, size=3) for r in range(3)]
    undo = [prepare_outbox(segment.mapping) for segment in segments]
    for segment in segments:
        segment.announce()
    ranks = rendezvous_module._Rendezvous(session, segments[0], 0, None, None)
    ranks.look_for_missing()
    for segment in segments:
        segment.attached = ranks.own.attached
    assert ranks.is_complete()
    segments[2].unlink()
    segments[1].attached = rendezvous_module.LEFT
    with pytest.raises(RendezvousError, match=r"rank 1 .* left .* with an error of its own"):
        ranks.look_after_others()
    ranks.leave()
    for drop in undo:
        drop()
    for segment in segments:
        segment.close()


# -- timeouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [float("nan"), -1, -float("inf"), "1", object()])
def test_a_bad_timeout_is_refused_before_anything_is_made(session, timeout):
    with pytest.raises((TypeError, ValueError), match="rendezvous_timeout="):
        rendezvous(session=session, rank=0, size=1, nbytes=NBYTES, timeout=timeout)
    with pytest.raises((TypeError, ValueError), match="rendezvous_timeout="):
        shmring.init(rank=0, size=1, session=session, rendezvous_timeout=timeout)


@pytest.mark.parametrize("timeout", [None, float("inf"), 1e300, 10**400, 30, 2**62])
@on_processes(2)
def test_without_a_limit_and_with_a_huge_one_ranks_meet(rank, session, timeout):
    with shmring.init(rank=rank, size=2, session=session, rendezvous_timeout=timeout) as comm:
        comm.barrier()
        for group in (
            comm.dup(rendezvous_timeout=timeout),
            comm.split(0, rendezvous_timeout=timeout),
            comm.shrink(rendezvous_timeout=timeout),
        ):
            group.barrier()
            group.close()


# -- killed while a communicator is made -------------------------------------------------------------------------------


def make_all(session):
    with shmring.init(rank=0, size=1, session=session) as comm:
        comm.dup().empty(1000)
        comm.shared_result(1000)


def test_sigkill_at_any_system_call_of_making_leaves_nothing_that_a_sweep_does_not_find(session):
    nkilled = 0
    for at in range(1, 1000):

        def die(at=at):
            left = iter(range(at - 1, -1, -1))

            def fault(_):
                if next(left, 1) == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            syscalls.fault = fault
            make_all(session)

        status = status_of(in_child(die))
        if status == 0:
            break
        assert status == -signal.SIGKILL
        nkilled += 1
        found = [left.name for left in leftovers(session)]
        assert [left.name for left in leftovers() if left.name in found] == found == standing(session)
        assert sorted(sweep(session)) == found
        assert standing(session) == []
    assert nkilled > 20
