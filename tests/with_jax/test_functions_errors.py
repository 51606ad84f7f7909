"""Bad arguments, ranks that disagree or die, communicators that are closed or dropped."""

import gc
import os
import re
import signal
import time
import weakref

import numpy as np
import pytest
from support.harness import eventually, report
from support.interrupts import lines_executed
from support.jax_ranks import PATIENCE_S, on_jax, run_jax, start_jax

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.errors import JaxRuntimeError  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

import shmring  # noqa: E402
import shmring.jax as sj  # noqa: E402
from shmring.jax.functions.handler import registered  # noqa: E402


def text_of(call, *args, expected=JaxRuntimeError):
    with pytest.raises(expected) as raised:
        jax.block_until_ready(call(*args))
    return str(raised.value)


# ---- before anything is sent -----------------------------------------------------------------------------------------


@on_jax(2)
def test_bad_arguments_are_refused_and_nothing_is_sent(comm):
    x, p = jnp.ones(3), comm.size
    cases = [
        (ValueError, f"root={p}: must be a rank, from 0 to {p - 1}", lambda x: sj.broadcast(x, p)),
        (ValueError, "root=-1", lambda x: sj.reduce(x, root=-1)),
        (TypeError, "'float' object", lambda x: sj.gather(x, 0.0)),
        (ValueError, "dst=7", lambda x: sj.send(x, 7)),
        (ValueError, "src=7", lambda x: sj.recv(x, 7)),
        (ValueError, "tag=-3: must be from 0", lambda x: sj.send(x, 0, -3)),
        (ValueError, "tag=-1: must be from 0 to 2147483646(?!, or)", lambda x: sj.send(x, 0, -1)),
        (ValueError, "more than once a destination", lambda x: sj.permute(x, [(0, 1), (1, 1)])),
        (ValueError, "destination=9", lambda x: sj.permute(x, [(0, 9)])),
        (ValueError, "unknown op 'median'", lambda x: sj.all_reduce(x, "median")),
        (ValueError, "unknown op <built-in function max>", lambda x: sj.all_reduce(x, max)),
        (ValueError, "op='band' is not defined for float32", lambda x: sj.scan(x, "band")),
        (ValueError, "op='avg' is not defined for int32", lambda x: sj.all_reduce(x.astype(int), "avg")),
        (ValueError, f"its length must be {p}", sj.scatter),
        (ValueError, f"its length must be a multiple of {p}", lambda x: sj.reduce_scatter(x, tiled=True)),
        (ValueError, "axis=1: the array has 1 axes", lambda x: sj.all_to_all(x, 1)),
        (TypeError, "jax.random.key_data", lambda x: sj.all_gather(jax.random.key(0))),
        (TypeError, "comm=3: must be a shmring.Communicator", lambda x: sj.all_reduce(x, comm=3)),
        (KeyError, "no communicator is named 'columns'", lambda x: sj.barrier(comm="columns")),
    ]
    for error, text, call in cases:
        for wrapped in (call, jax.jit(call)):
            with pytest.raises(error, match=text):
                wrapped(x)
    assert float(sj.all_reduce(1.0)) == p
    assert len(cases) == 19


@on_jax(2)
def test_computations_for_several_devices_are_refused(comm):
    jax.config.update("jax_num_cpu_devices", 2)
    mesh = Mesh(np.array(jax.devices()), "i")
    x = jax.device_put(jnp.ones(4), NamedSharding(mesh, PartitionSpec("i")))
    by_effect = text_of(jax.jit(sj.all_reduce), x, expected=ValueError)
    by_token = text_of(jax.jit(lambda x: sj.all_reduce(x, token=sj.new_token())), x, expected=ValueError)
    assert "not supported for more than 1 device" in by_effect
    assert "a computation for 2 devices" in by_token


@on_jax(2, x64=True)
def test_nothing_in_a_graph_is_trusted(comm):
    """Calls of the target with operands that no function here writes."""
    sj.all_reduce(1.0)
    x = jax.ShapeDtypeStruct((4,), np.float32)

    size = comm.size

    def refusal(kind, *more, comm=-1, nranks=size, op=0, root=0, source=0, dest=0, nname=0, result=x, operand=x):
        numbers = np.array([comm, kind, nranks, op, root, source, dest, 0, 0, nname, *more])
        call = jax.ffi.ffi_call("shmring", result)
        return text_of(jax.jit(lambda x: call(numbers, x)), np.ones(operand.shape, operand.dtype))

    float8 = jax.ShapeDtypeStruct((4,), jnp.float8_e5m2fnuz)
    for wrong in (0, 12, 77, 105, -1):
        assert "kind of call is not known" in refusal(wrong)
    assert "is gone, or belongs to another process" in refusal(2, comm=1 << 40)
    assert "is gone, or belongs to another process" in refusal(2, comm=-2)
    assert "does not fit" in refusal(2, result=jax.ShapeDtypeStruct((5,), np.float32))
    assert "does not fit" in refusal(2, result=jax.ShapeDtypeStruct((4,), np.int32))
    assert "made for a communicator of 9 ranks" in refusal(2, nranks=9)
    assert "the status is missing" in refusal(102)
    assert "more operands or results" in refusal(1)
    assert "not reduced" in refusal(2, result=float8, operand=float8)
    assert "has a wrong length" in refusal(2, nname=3)
    assert "has a wrong length" in refusal(2, nname=-3)
    assert "has a wrong length" in refusal(104, 1)
    assert "no communicator is named 'a'" in refusal(2, ord("a"), nname=1)
    assert "ValueError" in refusal(2, 1000, nname=1)
    assert "too large" in refusal(4, root=1 << 40)
    for wrong in (99, -1):
        assert refusal(2, op=wrong).startswith("INVALID_ARGUMENT: ValueError: ")
        assert refusal(4, root=wrong).startswith("INVALID_ARGUMENT: ValueError: ")
    assert refusal(104, comm.rank, 99).startswith("INVALID_ARGUMENT: ")
    plain = jax.ffi.ffi_call("shmring", x)
    assert "description of the call is missing" in text_of(jax.jit(lambda x: plain(x)), np.ones(4, np.float32))
    assert float(sj.all_reduce(1.0)) == size


# ---- while calls are made --------------------------------------------------------------------------------------------


def messages_that_do_not_fit(comm):
    """The communicator stays usable, and so do ordered calls."""
    x = jnp.arange(4.0)
    texts = []
    if comm.rank == 0:
        sj.send(x, 1, 1)
        sj.send(x, 1, 2)
        sj.send(x, 1, 3)
    else:
        texts = [text_of(lambda: sj.recv(jnp.ones(8), 0, 1)), text_of(lambda: sj.recv(jnp.ones(3), 0, 2))]
        texts.append(text_of(lambda: sj.recv(x.astype(int), 0, 3)))
        assert jnp.array_equal(sj.recv(x, 0, 2), x)
        assert jnp.array_equal(sj.recv(x, 0, 3), x)
    assert float(jax.jit(sj.all_reduce)(1.0)) == 2
    return texts


def test_messages_that_do_not_fit():
    short, long, other = run_jax(2, messages_that_do_not_fit)[1]
    assert "the message of rank 0 with tag 1 has 16 bytes, the result 32" in short
    assert "MessageTooLongError: " in long
    assert other.startswith("INVALID_ARGUMENT: ")


def shapes_that_differ(comm, by_token):
    token = sj.new_token() if by_token else None
    f = jax.jit(lambda x: sj.all_reduce(x, token=token))
    x = jnp.ones(3 + comm.rank)
    return text_of(f, x), text_of(f, x, expected=(JaxRuntimeError, ValueError))


@pytest.mark.parametrize("by_token", [False, True])
def test_shapes_that_differ_between_ranks(by_token):
    for texts in run_jax(2, shapes_that_differ, by_token):
        for text in texts:  # the second call raises the error of the first
            assert text.startswith("FAILED_PRECONDITION: MismatchError: ")
            assert "rank 1 called all_reduce(sum, float32 x 4)" in text


def dies(comm, by_token):
    def f(x, token):
        for _ in range(50):
            if by_token:
                x, token = sj.all_reduce(jnp.sin(x), token=token)
            else:
                x = sj.all_reduce(jnp.sin(x))
        return x, token

    f, x, token = jax.jit(f), jnp.ones(1000), sj.new_token()
    jax.block_until_ready(f(x, token))
    report("running")
    with pytest.raises((JaxRuntimeError, ValueError)) as raised:
        while True:
            jax.block_until_ready(f(x, token))
    again = text_of(f, x, token, expected=(JaxRuntimeError, ValueError))
    return str(raised.value), again, type(raised.value).__name__


@pytest.mark.parametrize("by_token", [False, True])
def test_a_rank_that_is_killed_within_a_function(by_token):
    ranks = start_jax(3, dies, by_token)
    ranks.wait_for("running", timeout=PATIENCE_S)
    time.sleep(0.2)
    ranks.kill(1)
    outcomes = ranks.outcomes(PATIENCE_S)
    for rank in (0, 2):
        assert outcomes[rank].ok, str(outcomes[rank])
        first, again, kind = outcomes[rank].result
        assert re.match("UNAVAILABLE: PeerLostError: .*rank 1", first), first
        assert "PeerLostError: " in again
        assert by_token or kind in ("JaxRuntimeError", "XlaRuntimeError")


def late(comm):
    if comm.rank == 1:
        while not comm.is_broken:
            time.sleep(0.01)
        return ""
    return text_of(jax.jit(sj.all_reduce), 1.0)


def test_a_rank_that_is_late():
    text = run_jax(2, late, init={"timeout": 0.5})[0]
    assert re.match("DEADLINE_EXCEEDED: CollectiveTimeoutError: .*rank 1", text), text


def aborted(comm):
    if comm.rank == 1:
        comm.abort("no more")
        return ""
    return text_of(jax.jit(sj.all_reduce), 1.0)


def test_a_rank_that_aborts():
    text = run_jax(2, aborted)[0]
    assert re.match("ABORTED: AbortedError: .*no more", text), text


# ---- life of a communicator ------------------------------------------------------------------------------------------


@on_jax(2)
def test_a_closed_communicator(comm):
    twin = comm.dup()
    f = jax.jit(lambda x: sj.all_reduce(x, comm=twin))
    g = jax.jit(lambda x: sj.all_reduce(x, comm=twin, token=sj.new_token())[0])
    for _ in range(2):  # jax 0.12 traces the first function of a process with effects twice
        f(1.0), g(1.0)
    twin.close()
    for compiled in (f, g):
        text = text_of(compiled, 1.0, expected=(JaxRuntimeError, ValueError))
        assert text.startswith("FAILED_PRECONDITION: ClosedError: "), text
    with pytest.raises(shmring.ClosedError):
        sj.all_reduce(1.0, comm=twin)
    other = comm.dup()
    other.close()
    with pytest.raises(ValueError, match="is closed"):
        sj.all_reduce(1.0, comm=other)
    assert float(sj.all_reduce(1.0)) == 2.0


@on_jax(2)
def test_a_function_keeps_its_communicator_alive_as_long_as_it_lives(comm):
    """A function keeps its communicator alive, and nothing else does."""
    holder = [comm.dup()]
    seen = weakref.ref(holder[0])
    f = jax.jit(lambda x: sj.all_reduce(x, comm=holder[0], token=sj.new_token())[0])
    g = jax.jit(lambda x: sj.all_reduce(x, comm=holder[0]))
    f(1.0), f(1.0), g(1.0)
    holder.clear()
    gc.collect()
    assert float(f(1.0)) == float(f(2.0)) / 2 == float(g(1.0)) == comm.size
    del f, g
    jax.clear_caches()

    @eventually  # the thread that has executed a function may still hold it
    def _():
        gc.collect()
        assert seen() is None

    made = [comm.dup() for _ in range(20)]
    for one in made:
        assert float(sj.all_reduce(1.0, comm=one)) == comm.size


@on_jax(1)
def test_an_interrupt_as_the_entry_of_a_communicator_is_dropped_is_not_lost(comm):
    made = [registered(comm)]
    number = made[0].number
    assert registered(comm) is made[0]
    assert lines_executed(made.clear) == 0
    assert registered(comm).number != number


def killed_by_itself(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [text_of(jax.jit(sj.recv), jnp.ones(3)), text_of(jax.jit(lambda x: sj.recv(x, 1)), jnp.ones(3))]


def test_a_message_of_a_rank_that_is_dead():
    outcome = start_jax(2, killed_by_itself).outcomes(PATIENCE_S)[0]
    assert outcome.ok, str(outcome)
    for text in outcome.result:
        assert re.match("UNAVAILABLE: PeerLostError: .*rank 1", text), text
