"""Collectives on tensors straight on the core: exact answers of every dtype, default and named communicators, plans."""

import pytest
from support.harness import run_ranks
from support.on_ranks import on_ranks
from support.oracle import check, draw

torch = pytest.importorskip("torch")

from support.torch_checks.driver import Tensors  # noqa: E402

import shmring.torch.ops  # noqa: E402
from shmring.torch import all_reduce_, communicator, set_communicator  # noqa: E402
from shmring.watch.timeline import name_of, read  # noqa: E402

pytestmark = pytest.mark.torch


@on_ranks(1, 2, 3)
def test_every_case_is_right_on_tensors(comm, seed):
    driver = Tensors(comm)
    for case in draw(120, f"{seed} tensors", Tensors.takes):
        check(driver, case)
    driver.close()


def profile_and_trace(comm, directory):
    """Names and facts of the calls in a profile and in a timeline of the same calls."""
    set_communicator(comm)
    x, large = torch.ones(10), torch.ones(1 << 18)
    planned = comm.plan("all_reduce", large)
    all_reduce_(x)  # not profiled
    with torch.profiler.profile(record_shapes=True) as profile, comm.trace(directory) as timeline:
        all_reduce_(x)
        planned()
        comm.all_gather(x)
        comm.broadcast(large, root=1)
        shmring.torch.ops.all_reduce(x)
        comm.barrier()
    comm.barrier()
    profiled = [(event.name, event.kwinputs) for event in profile.events() if event.name.endswith(")")]
    (recorded,) = [one for one in read(directory) if one.path == timeline.path]
    facts = ("bytes", "number", "algorithm")
    return (
        [(name, *(found[fact] for fact in facts)) for name, found in profiled],
        [
            (name_of(call["signature"]), int(call["nbytes"]), int(call["number"]), call["algorithm"].decode())
            for call in recorded.calls
        ],
    )


def test_a_profile_has_the_calls_of_the_timeline(tmp_path):
    for profiled, recorded in run_ranks(2, profile_and_trace, str(tmp_path)):
        assert profiled == recorded
        assert [name for name, *_ in profiled] == [
            "all_reduce(sum, float32 x 10)",
            "all_reduce(sum, float32 x 262144)",
            "all_gather(float32 x 10)",
            "broadcast(float32 x 262144, root=1)",
            "all_reduce(sum, float32 x 10)",
            "barrier()",
        ]


@on_ranks(2)
def test_strided_tensors_parameters_and_scalars_are_reduced_and_what_has_no_memory_is_refused(comm):
    strided = torch.zeros(4, 6)
    strided[:, ::2] = comm.rank + 1
    all_reduce_(strided[:, ::2], comm=comm)
    parameter = torch.nn.Parameter(torch.full((3,), comm.rank + 1.0))
    assert all_reduce_(parameter, "max", comm=comm) is parameter
    scalar = all_reduce_(torch.tensor(comm.rank + 1.0), "prod", comm=comm)
    with pytest.raises(TypeError, match="does not export its memory"):
        all_reduce_(torch.zeros(3).to_sparse(), comm=comm)
    with pytest.raises(TypeError, match="does not export its memory"):
        all_reduce_(torch.zeros(3, device="meta"), comm=comm)
    with pytest.raises(ValueError, match="share memory"):
        all_reduce_(torch.zeros(1).expand(4), comm=comm)
    comm.barrier()  # what was refused was not sent
    assert strided[1].tolist() == [3.0, 0.0] * 3
    assert parameter.tolist() == [2.0] * 3
    assert parameter.requires_grad
    assert scalar.item() == 2.0


@on_ranks(4)
def test_the_communicator_is_the_default_one_a_named_one_or_the_one_given(comm):
    half = comm.split(comm.rank % 2)
    set_communicator(comm)
    set_communicator(half, "half")
    assert communicator() is comm
    assert communicator("half") is half
    with pytest.raises(KeyError, match=r"set_communicator\(comm, 'third'\)"):
        all_reduce_(torch.ones(1), comm="third")
    with pytest.raises(TypeError):
        set_communicator("half")
    found = [all_reduce_(torch.ones(2), comm=comm)[0].item() for comm in (None, "", comm, "half", half)]
    assert found == [4.0, 4.0, 4.0, 2.0, 2.0]


@on_ranks(2)
def test_a_plan_reduces_what_the_tensor_holds_at_each_call(comm):
    x = torch.zeros(5)
    call = comm.plan("all_reduce", x)
    seen = []
    for step in range(3):
        x.fill_(comm.rank + step)
        assert call() is x
        seen.append(x[0].item())
    with pytest.raises(ValueError, match="C-contiguous"):
        comm.plan("all_reduce", torch.zeros(6)[::2])
    x.fill_(comm.rank)
    assert call.start().result() is x
    assert [*seen, x[-1].item()] == [1.0, 3.0, 5.0, 1.0]
