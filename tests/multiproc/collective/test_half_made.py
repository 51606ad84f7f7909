"""Objects that were closed, or never made: every use of them is an answer or an error."""

import copy
import pickle

import numpy as np
import pytest
from support.extension_types import use_everything
from support.on_ranks import on_ranks

from shmring import Communicator
from shmring.errors import ClosedError


class Forgetful(Communicator):
    def __init__(self, *args):
        pass  # without super().__init__()


def ones():
    return np.ones(4)


@on_ranks(1)
def test_what_is_used_after_close_raises(comm):
    forgetful = Forgetful(comm._engine)
    x = comm.empty(5)
    plan, request, work = comm.plan("all_reduce", ones()), comm.irecv(ones(), 0, 3), comm.barrier(async_op=True)
    many, counted = comm.plan("all_reduce_many", [ones()]), comm.plan("all_to_all", ones(), counts=[4], out_counts=[4])
    for thing in (comm, request, work, plan, many, counted):
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                duplicate(thing)
    assert not request.done()
    comm.close()
    for thing in (comm, request, work, plan, many, counted, forgetful, comm._object_turn, comm._engine.sharing):
        use_everything(lambda thing=thing: thing)
    with pytest.raises(ClosedError):
        request.wait()
    for call in (plan, many, counted, plan.start, lambda: comm.all_gather_object(1)):
        with pytest.raises(ClosedError):
            call()
    x[:] = 1
