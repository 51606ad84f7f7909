"""Communicators dropped without close(): the collector finds them in every shape of cycle, and peers see them leave."""

import gc
import types
import weakref

import numpy as np
import pytest
from support.on_ranks import on_ranks

from shmring.communicator import Communicator


class Holder:
    pass


class Sub(Communicator):
    def __init__(self, *_):
        self.itself = self


def in_an_attribute(comm):
    comm.itself = comm


def in_an_object(comm):
    holder = Holder()
    holder.comm, holder.itself = comm, holder


def in_a_list(comm):
    cycle = [comm]
    cycle.append(cycle)


def in_a_dict(comm):
    cycle = {"comm": comm}
    cycle["itself"] = cycle


def in_a_closure(comm):
    def use():
        return use, comm

    comm.use = use


def in_a_bound_method(comm):
    comm.saved = comm.barrier, [comm.all_reduce]
    comm.saved[1].append(comm.saved)


def in_a_caught_exception(comm):
    try:
        raise ValueError
    except ValueError as error:
        kept = error
        assert kept.__traceback__.tb_frame.f_locals["comm"] is comm


def in_a_generator(comm):
    def steps():
        yield comm, running
        yield

    running = steps()
    next(running)


def in_a_module_like_holder(comm):
    module = types.ModuleType("holder")
    module.comm, module.module, comm.module = comm, module, module


def with_another(comm):
    other = comm.dup()
    comm.other, other.other = other, comm


def with_a_request(comm):
    array = np.ones(3).view(type("Array", (np.ndarray,), {}))
    array.request, array.comm = comm.irecv(array, src=1 - comm.rank), comm


def with_a_shared_array(comm):
    array = comm.empty(1000).view(type("Array", (np.ndarray,), {}))
    comm.array_and_plan = array, comm.plan("all_reduce", array), comm
    comm.array_and_plan[1]()


def with_finished_work(comm):
    work = comm.all_reduce(np.ones(3), async_op=True)
    work.wait()
    comm.work = work, work.add_done_callback, comm


SHAPES = [in_an_attribute, in_an_object, in_a_list, in_a_dict, in_a_closure, in_a_bound_method, in_a_caught_exception,
          in_a_generator, in_a_module_like_holder, with_another, with_a_request, with_a_shared_array,
          with_finished_work]  # fmt: skip


@pytest.mark.sample(6)
@pytest.mark.parametrize("shape", SHAPES)
@on_ranks(2)
def test_a_communicator_in_garbage_leaves(comm, shape):
    gc.disable()
    group = comm.dup(threads=2, split_nbytes=0) if shape is in_a_list else comm.dup()
    group.all_reduce(np.ones(5000))
    if comm.rank == 0:
        watched = group.dup()
        shape(watched)
        gone = weakref.ref(watched)
        del watched
        gc.collect()
        while gone() is not None:  # until its progress thread has let go of the last work
            gc.collect()
        comm.barrier()
    else:
        kept = group.dup()
        if shape is with_another:
            other = kept.dup()
        elif shape is with_a_shared_array:
            shared = kept.empty(1000)
            kept.all_reduce(shared)
        elif shape is with_finished_work:
            kept.all_reduce(np.ones(3))
        comm.barrier()
        assert kept._engine.gone_ranks() == [0]
        if shape is with_another:
            assert other._engine.gone_ranks() == [0]
    group.barrier()


@on_ranks(2)
def test_instances_of_subclasses_with_a_reference_to_themselves_are_collected(comm):
    gc.disable()
    for cls in (Sub, type("Slots", (Sub,), {"__slots__": ("more",)})):
        made = cls(comm.dup()._engine)
        assert made.all_reduce(np.ones(2)) is not None
        del made
        gc.collect()
    comm.barrier()
