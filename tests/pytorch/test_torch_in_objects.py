"""Tensors inside objects: they arrive as they were, in channels, queues, messages and collectives."""

import dataclasses
import subprocess
import sys
from collections import OrderedDict, namedtuple
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from support.on_ranks import on_ranks
from support.threads import beside

import shmring
from shmring.core.objects import codec
from shmring.core.objects.codec import block_of, load, parts_of
from shmring.errors import ObjectError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

OPAQUE = ("q", "bits")  # have no elements that could be made without scales
DTYPES = sorted(
    {x for x in vars(torch).values() if isinstance(x, torch.dtype) and not str(x)[6:].startswith(OPAQUE)}, key=str
)


def dump(*args, **options):
    return codec.dump(*args, refusal=None, **options)


@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    label: int


Batch = namedtuple("Batch", ["samples", "rest"])


def bits(x):
    """The bytes of the values."""
    return bytes(x.detach().contiguous().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8).numpy())


def assert_same(found, wanted):
    """Another tensor with the same bits, dtype and shape; dense ones also with the same strides and flags."""
    assert type(found) is type(wanted)
    assert found is not wanted
    assert (found.dtype, found.shape, found.requires_grad) == (wanted.dtype, wanted.shape, wanted.requires_grad)
    if wanted.is_contiguous():
        assert found.is_contiguous()
    elif wanted.nbytes == wanted.untyped_storage().nbytes():
        assert found.stride() == wanted.stride()
        assert (found.is_conj(), found.is_neg()) == (wanted.is_conj(), wanted.is_neg())
    assert bits(found) == bits(wanted)
    assert found.untyped_storage().nbytes() == found.nbytes  # of memory that has nothing else


def over_channel(obj, capacity=1 << 18):
    sender, receiver = shmring.channel(capacity)
    with sender, receiver:
        assert sender.send_object(obj, 0)
        return receiver.recv(0)


def over_queue(obj):
    queue = shmring.Queue(capacity_nbytes=1 << 22)
    queue.put(obj)
    found = queue.get()
    queue.close()
    return found


def over_block(obj):
    dumped = dump(obj)
    return load(*parts_of(block_of(dumped)))


def random_of(dtype, shape):
    nbytes = int(np.prod(shape)) * dtype.itemsize
    if dtype is torch.bool:
        return torch.randint(0, 2, shape).bool()
    return torch.frombuffer(bytearray(np.random.default_rng(nbytes).bytes(nbytes)), dtype=dtype).view(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (4, 33, 33)], ids=str)
def test_every_dtype_arrives(dtype, shape):
    x = random_of(dtype, shape)
    for found in (over_channel(x), over_queue([x])[0], over_block({"x": x})["x"]):
        assert_same(found, x)


CASES = {
    "empty": torch.empty(0, 3, dtype=torch.bfloat16),
    "transposed": torch.arange(6.0).view(2, 3).t(),
    "channels last": torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),
    "every second": torch.arange(10)[::2],
    "part of a large one": torch.arange(1_000_000)[5:9],
    "expanded": torch.ones(1, 3).expand(4, 3),
    "extent of one with a strange stride": torch.zeros(4, 1, 3).as_strided((4, 1, 3), (3, 77, 1)),
    "conjugated": torch.randn(3, 2, dtype=torch.complex64).conj(),
    "negated": torch._neg_view(torch.randn(3)),
    "imaginary half of a conjugated one": torch.randn(3, dtype=torch.complex128).conj().imag,
    "conjugated and transposed": torch.randn(3, 2, dtype=torch.complex64).mH,
    "requires grad": torch.randn(3, requires_grad=True),
    "result of a calculation": torch.randn(3, requires_grad=True) * 2,
    "parameter": torch.nn.Parameter(torch.randn(3, 4)),
    "frozen parameter": torch.nn.Parameter(torch.arange(5), requires_grad=False),
    "shared": torch.arange(5.0).share_memory_(),
    "64 dimensions": torch.arange(6).view((1,) * 61 + (2, 1, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_dense_tensor_arrives(name):
    x = CASES[name]
    assert_same(over_channel(x), x)
    assert_same(over_block(x), x)
    found = over_queue({"a": [(x, 1)], "again": x})
    assert_same(found["a"][0][0], x)
    assert found["again"] is found["a"][0][0]


LENT = {
    **{str(dtype): lambda dtype=dtype: random_of(dtype, (4, 33, 33)) for dtype in DTYPES},
    "transposed": lambda: torch.randn(40, 50).t(),
    "conjugated": lambda: torch.randn(40, 50, dtype=torch.complex64).conj(),
    "parameter": lambda: torch.nn.Parameter(torch.randn(40, 50)),
}


@pytest.mark.filterwarnings("error")  # torch warns of read-only memory
@pytest.mark.parametrize("name", LENT)
def test_tensors_of_a_lease_lie_in_the_ring_and_keep_it(name):
    x = LENT[name]()
    sender, receiver = shmring.channel(1 << 20)
    memory = np.frombuffer(memoryview(receiver._channel.mapping), np.uint8)
    sender.send_object({"a": [x], "n": np.arange(1000)})
    found = receiver.peek(0).object
    tensor = found["a"][0]
    assert_same(tensor, x)
    assert 0 <= tensor.data_ptr() - memory.ctypes.data < memory.nbytes
    assert tensor.data_ptr() % 64 == 0
    part = tensor.detach()[1:]
    del found, tensor
    with pytest.raises(BufferError, match="alive"):
        receiver.release()
    del part
    receiver.release()
    assert receiver.try_recv() is None


def test_a_tensor_that_came_in_pieces_is_leased_from_private_memory():
    x = torch.arange(100_000)
    sender, receiver = shmring.channel(1 << 16)
    with beside(sender.send_object, [x]):
        (found,) = receiver.peek().object
    assert_same(found, x)
    del found
    receiver.release()


def test_containers_keep_their_tensors():
    samples = [Sample(torch.randn(3, 100, 100), label) for label in range(3)]
    batch = Batch(samples, OrderedDict(mask=torch.tensor([True, False]), names=("a", "b"), n=np.arange(4)))
    found = over_channel(batch, 1 << 20)
    assert type(found) is Batch
    assert list(found.rest) == list(batch.rest)
    assert (found.rest["n"] == batch.rest["n"]).all()
    for one, other in zip(found.samples, samples, strict=True):
        assert one.label == other.label
        assert_same(one.image, other.image)


def test_a_module_with_shared_parameters_arrives():
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    module[1].weight = module[0].weight
    found = over_channel(module, 1 << 20)
    assert found[1].weight is found[0].weight
    x = torch.randn(2, 64)
    assert torch.equal(found(x), module(x))


def test_elements_are_neither_in_the_stream_nor_copied_before_they_are_sent():
    x = torch.randn(1000, 1000)
    dumped = dump([x, x[3:9]])
    assert len(dumped.header) < 25_000
    assert dumped.buffers[0].nbytes == x.nbytes
    assert np.frombuffer(dumped.buffers[0], np.uint8).ctypes.data == x.data_ptr()


def test_what_arrives_can_be_written_and_the_sent_one_stays():
    x = torch.zeros(5000)
    found = over_channel(x)
    found.add_(1)
    assert (x == 0).all()
    assert (found == 1).all()


def with_attribute():
    x = torch.arange(3.0)
    x.note = "mine"
    return x


def with_hook():
    x = torch.ones(2, requires_grad=True)
    x.register_hook(print)
    return x


OTHERS = {
    "sparse": lambda: torch.eye(4).to_sparse(),
    "compressed": lambda: torch.eye(4).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(5), 0.1, 3, torch.quint8),
    "meta": lambda: torch.empty(3, 2, device="meta"),
    "attribute": with_attribute,
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", OTHERS)
def test_tensors_that_are_more_than_their_bytes_go_as_torch_pickles_them(name):
    x = OTHERS[name]()
    found = over_channel([x])[0]
    assert (type(found), found.dtype, found.shape) == (type(x), x.dtype, x.shape)
    assert (found.layout, found.device, found.__dict__) == (x.layout, x.device, x.__dict__)
    if name in ("sparse", "compressed"):
        assert torch.equal(found.to_dense(), x.to_dense())
    elif name != "meta":
        assert torch.equal(found, x)


def test_hooks_are_left_with_a_warning_as_torch_does():
    with pytest.warns(UserWarning, match="hooks"):
        assert torch.equal(over_channel(with_hook()), torch.ones(2))


def test_a_tensor_that_cannot_be_pickled_is_an_error_and_nothing_is_sent():
    def refused(x):
        with pytest.raises(ObjectError, match="cannot pickle"):
            dump(x)
        return x

    torch.func.vmap(refused)(torch.ones(3))  # of a transformation of functions: it has no memory of its own


def test_a_parameter_without_elements_arrives():
    lazy = over_channel(torch.nn.parameter.UninitializedParameter())
    assert type(lazy) is torch.nn.parameter.UninitializedParameter


class Tagged(torch.Tensor):
    """A subclass: it may have rules of its own."""


def test_subclasses_stay_what_they_are():
    x = torch.arange(3.0).as_subclass(Tagged)
    found = over_channel(x)
    assert type(found) is Tagged
    assert torch.equal(found, x)


# ---- reducers of multiprocessing -------------------------------------------------------------------------------------


class Handle:
    """Something that only a reducer of multiprocessing can transfer."""

    def __init__(self, number):
        self.number = number

    def __reduce_ex__(self, protocol):
        raise TypeError("not without its reducer")


def reduced_handle(handle):
    return Handle, (handle.number,)


def register(monkeypatch, kind, reduce):
    monkeypatch.setitem(ForkingPickler._extra_reducers, kind, reduce)


@pytest.mark.parametrize("as_multiprocessing", [False, True])
def test_reducers_of_multiprocessing_are_used_but_for_plain_tensors(monkeypatch, as_multiprocessing):
    import torch.multiprocessing

    with pytest.raises(ObjectError, match="not without its reducer"):
        dump(Handle(3))
    register(monkeypatch, Handle, reduced_handle)
    x, parameter = torch.arange(4.0), torch.nn.Parameter(torch.ones(2))
    dumped = dump([Handle(3), x, parameter], as_multiprocessing=as_multiprocessing)
    assert not x.is_shared()  # torch's reducer would have moved it
    handle, found, found_parameter = load(dumped.header, dumped.buffers)
    assert handle.number == 3
    assert_same(found, x)
    assert_same(found_parameter, parameter)


def test_torchs_own_reducers_are_used_as_by_multiprocessing_only():
    import torch.multiprocessing

    x = torch.ones(2, requires_grad=True) * 2
    with pytest.raises(ObjectError, match="non-leaf"):  # an error of torch's reducer
        dump(x, as_multiprocessing=True)
    dumped = dump(x)  # as pickle does it
    assert load(dumped.header, dumped.buffers).tolist() == [2, 2]
    dumped = dump(torch.ones(3).to_sparse())
    assert load(dumped.header, dumped.buffers).to_dense().tolist() == [1, 1, 1]


def test_a_reducer_that_a_program_has_registered_for_tensors_wins(monkeypatch):
    register(monkeypatch, torch.Tensor, lambda x: (float, (7,)))
    dumped = dump(torch.ones(2))
    assert load(dumped.header, dumped.buffers) == 7.0


def test_torch_is_not_imported():
    program = (
        "import sys, shmring; s, r = shmring.channel(1 << 16); s.send_object([1, {}]); assert r.recv() == [1, {}];"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# ---- between ranks ---------------------------------------------------------------------------------------------------


def tensors_of(rank):
    return {
        "small": torch.full((3,), rank, dtype=torch.int16),
        "large": torch.full((100_000,), rank, dtype=torch.bfloat16),
        "transposed": torch.arange(6.0).view(2, 3).t() + rank,
        "parameter": torch.nn.Parameter(torch.full((2, 2), float(rank))),
    }


def assert_of(found, rank):
    wanted = tensors_of(rank)
    assert list(found) == list(wanted)
    for name, x in wanted.items():
        assert torch.equal(found[name], x), name
        assert (found[name].dtype, found[name].stride(), type(found[name])) == (x.dtype, x.stride(), type(x))


@on_ranks(2, 3)
def test_object_collectives_and_messages_carry_tensors(comm):
    n, own = comm.size, comm.rank
    assert_of(comm.broadcast_object(tensors_of(own), root=1), 1)
    for rank, found in enumerate(comm.all_gather_object(tensors_of(own))):
        assert_of(found, rank)
    gathered = comm.gather_object(tensors_of(own), root=0)
    for rank, found in enumerate(gathered or ()):
        assert_of(found, rank)
    assert_of(comm.scatter_object([tensors_of(r) for r in range(n)], root=0), own)
    for rank, found in enumerate(comm.all_to_all_object([tensors_of(own)] * n)):
        assert_of(found, rank)
    comm.send_object(tensors_of(own), (own + 1) % n)
    assert_of(comm.recv_object((own - 1) % n), (own - 1) % n)
