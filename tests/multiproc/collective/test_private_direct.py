"""Private arrays of several processes from which the kernel copies, where it lets ranks read each other's memory."""

import ctypes
import errno
import mmap
import os
import platform
from dataclasses import replace

import numpy as np
import pytest
from support.harness import run_ranks
from support.inputs import same_bits, values
from support.limits import refuse_system_call
from support.on_ranks import on_ranks

from shmring.collectives.bootstrap.tuning import RankInfo, reads_all
from shmring.config import Config
from shmring.errors import AbortedError

COUNT = 1 << 18  # float32: 1 MiB
PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}.get(platform.machine())
MEMFD_SECRET = 447


def reads_others(comm):
    return bool(comm._engine.thresholds.readable)


@pytest.fixture(scope="module", autouse=True)
def rights():
    if not all(run_ranks(2, reads_others)):
        pytest.skip("the kernel does not let processes read each other's memory here")


def ncalls(comm):
    return comm.stats()["zero_copy_calls"]


def check_all_to_all(comm, x=None, out=None):
    blocks = [values(np.float32, (comm.size, COUNT), rank) for rank in range(comm.size)]
    x = np.empty_like(blocks[0]) if x is None else x
    x[:] = blocks[comm.rank]
    assert same_bits(comm.all_to_all(x, out), np.stack([block[comm.rank] for block in blocks]))


def check_all_gather(comm, x=None, out=None):
    sources = [values(np.float32, COUNT, rank) for rank in range(comm.size)]
    x = np.empty_like(sources[0]) if x is None else x
    x[:] = sources[comm.rank]
    assert same_bits(comm.all_gather(x, out), np.stack(sources))


CHECKS = check_all_to_all, check_all_gather


@on_ranks(2, 3, init={"direct": 1})
def test_large_calls_that_only_move_data_are_direct_and_others_are_not(comm):
    for number, check in enumerate(CHECKS, 1):
        check(comm)
        assert ncalls(comm) == number
    x = np.full((comm.size, COUNT), 1.0)
    comm.all_reduce(x)
    comm.reduce_scatter(x)
    comm.broadcast(x)
    comm.scatter(x, np.zeros(COUNT))
    comm.gather(x)
    comm.all_gather(np.zeros(1 << 10))
    assert ncalls(comm) == 2


@on_ranks(2, init={"direct": 1})
def test_plans_and_calls_in_the_background_are_direct(comm):
    x, out = np.empty((comm.size, COUNT), np.float32), np.empty((comm.size, COUNT), np.float32)
    plan = comm.plan("all_to_all", x, out)
    for number in range(3):
        x[:] = comm.rank + number
        plan()
        assert (out == np.arange(comm.size)[:, None] + number).all()
    gathered = comm.all_gather(x[0], async_op=True).wait()
    assert (gathered == np.arange(comm.size)[:, None] + 2).all()
    assert ncalls(comm) == 4


def learned(comm):
    comm._engine.sharing.private_nbytes = 0
    x, out = np.zeros((comm.size, 40_009), np.float32), np.zeros((comm.size, 40_009), np.float32)
    found = []
    while len(found) < 200 or 1 not in found:  # on all ranks alike
        before = comm._engine.sharing.nzero_copy
        x[:] = comm.rank + len(found)
        comm.all_to_all(x, out)
        assert (out == np.arange(comm.size)[:, None] + len(found)).all()
        found.append(comm._engine.sharing.nzero_copy - before)
    (program,) = comm.stats()["programs"]
    return found, set(program["variant"]), set(program["tried_us"].get("path", ()))


@pytest.mark.parametrize("n", [2, 3])
def test_calls_begin_staged_and_all_ranks_try_alike(n):
    found = run_ranks(n, learned, init={"nslots": 4, "slot_nbytes": 8192})
    assert all(one == found[0] for one in found)
    made, variant, tried = found[0]
    assert made[0] == 0
    assert "path" in variant
    assert tried == {"direct", "staged"}


@on_ranks(3, init={"direct": 1})
def test_some_arrays_are_private_and_some_lie_in_segments(comm):
    made = comm.empty((comm.size, COUNT), np.float32)
    result = comm.shared_result((comm.size, COUNT), np.float32)
    for rank in range(comm.size):
        mine = made if comm.rank == rank else None
        before = ncalls(comm)
        check_all_to_all(comm, mine)
        check_all_to_all(comm, None, mine)
        check_all_gather(comm, None if mine is None else mine[1])
        check_all_gather(comm, None, result)
        assert ncalls(comm) - before == 4
        comm.barrier()
    private = np.empty((comm.size, COUNT), np.float32)
    with comm.share(private):
        check_all_to_all(comm, private[:] if comm.rank else None)


@on_ranks(2)
def test_calls_of_one_size_on_private_and_on_shared_arrays_are_learned_apart(comm):
    found = []
    for made in (None, comm.empty(COUNT, np.float32), None):
        for _ in range(3):
            before = ncalls(comm)
            check_all_gather(comm, made)
            found.append(ncalls(comm) - before)
    assert found == [0, 0, 0, 1, 1, 1, 0, 0, 0]  # as they begin


@on_ranks(2)
def test_an_explanation_says_that_it_is_tried(comm):
    assert "  zero_copy: tried, 2 synchronisations, " in comm.explain("all_gather", 1 << 20)
    assert "zero_copy" not in comm.explain("all_gather", 1 << 17)
    assert "zero_copy" not in comm.explain("all_reduce", 1 << 20)


@on_ranks(2, init={"direct": 1})
def test_in_place_it_is_staged(comm):
    x = np.full((comm.size, COUNT), comm.rank)
    comm.all_to_all(x, x)
    assert (x == np.arange(comm.size)[:, None]).all()
    assert ncalls(comm) == 0
    check_all_to_all(comm)
    assert ncalls(comm) == 1


@pytest.mark.parametrize("direct", [-1, 0])
@on_ranks(2, init=lambda direct: {"direct": direct})
def test_the_setting_decides_whether_ranks_try_to_read(comm, direct):
    assert reads_others(comm) == (direct != 0)
    for check in CHECKS:
        check(comm)


# ---- what the kernel refuses -----------------------------------------------------------------------------------------


def refused(comm, error):
    """Whether one rank could be made one that may not read; if so, all calls are staged from then on."""
    check_all_to_all(comm)
    if not comm.broadcast_object(comm.rank == 1 and refuse_system_call(PROCESS_VM_READV, error), root=1):
        return False
    for check in CHECKS:
        check(comm)
    assert ncalls(comm) == 1
    part = comm.split(0)
    assert not reads_others(part)
    check_all_to_all(part)
    part.close()
    return True


@pytest.mark.skipif(PROCESS_VM_READV is None, reason="the number of the system call is not known here")
@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
def test_if_one_rank_is_refused_from_some_call_on_all_stage(error):
    if not all(run_ranks(3, refused, error, init={"direct": 1})):
        pytest.skip("a process may not install a seccomp filter here")


def test_a_process_with_another_number_is_not_read():
    config = Config()
    own = RankInfo(1.0, (), frozenset(), process=(b"0123456789abcdef", os.getpid()))
    held = ctypes.create_string_buffer(own.process[0], 16)
    here = own._replace(address=ctypes.addressof(held))
    assert reads_all([here, here], config)
    for other in (
        here._replace(process=(b"0123456789abcdeg", os.getpid())),
        here._replace(process=(own.process[0], 1 << 22)),
        here._replace(address=0),
    ):
        assert not reads_all([here, other], config)
    assert not reads_all([here], config)
    assert not reads_all([here, here], replace(config, internals=replace(config.internals, direct=0)))


def protect(memory, begin, nbytes):
    """Take the right to access some pages of a mapping away."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + begin
    assert ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), 0) == 0


@on_ranks(3, init={"direct": 1})
def test_memory_without_access_is_an_error_on_all_ranks(comm):
    """Both ends of rank 1's array can be read, but not the middle of its block for rank 2."""
    memory = mmap.mmap(-1, comm.size * 4 * COUNT)
    x = np.frombuffer(memory, np.float32).reshape(comm.size, COUNT)
    x[:] = comm.rank
    if comm.rank == 1:
        protect(memory, 2 * 4 * COUNT + (1 << 19), 1 << 14)
    with pytest.raises(AbortedError, match="did not let this rank read"):
        comm.all_to_all(x)
    assert comm.is_broken


def in_secret_memory(comm):
    """Only rank 1 itself can access its array, so no call may have the kernel copy from there."""
    number = ctypes.CDLL(None).syscall(MEMFD_SECRET, 0)
    os.ftruncate(number, comm.size * 4 * COUNT)
    memory = mmap.mmap(number, comm.size * 4 * COUNT)
    x = np.frombuffer(memory, np.float32).reshape(comm.size, COUNT)
    check_all_to_all(comm, x if comm.rank else None)
    check_all_to_all(comm)
    return ncalls(comm)


def test_an_array_that_only_its_owner_can_access_is_staged():
    number = ctypes.CDLL(None).syscall(MEMFD_SECRET, 0)
    if number < 0:
        pytest.skip("no secret memory here")
    os.close(number)
    assert run_ranks(2, in_secret_memory, init={"direct": 1}) == [1, 1]
