"""DataLoaders whose workers send through rings: the same batches and errors as with torch's own contexts."""

import os
import resource
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.harness import PATIENCE, shared_names
from support.programs import run_python

import shmring.multiprocessing

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info  # noqa: E402 after the skip

# torch's forkserver, resource tracker and the thread that passes descriptors live on.
pytestmark = [pytest.mark.torch, pytest.mark.leaks]

METHODS = ("fork", "spawn", "forkserver")


class Samples(Dataset):
    """Dictionaries of tensors of several dtypes, an image large enough to be lent, text and numbers."""

    def __init__(self, count=12, side=64):
        self.count, self.side = count, side

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return {
            "image": torch.rand(3, self.side, self.side, generator=generator),
            "half": torch.full((5,), i, dtype=torch.bfloat16),
            "mask": torch.arange(4) % 2 == i % 2,
            "nested": [torch.tensor(i), (torch.zeros(0), torch.ones(2, 2).T * i)],
            "label": i,
            "text": f"sample {i}",
        }


class Counting(IterableDataset):
    """Each worker counts its own share."""

    def __iter__(self):
        info = get_worker_info()
        return iter(torch.arange(info.id, 20, info.num_workers))


class Failing(Samples):
    def __getitem__(self, i):
        if i == 5:
            raise ZeroDivisionError("sample 5 is broken")
        return torch.tensor(i)


class Deadly(Samples):
    def __getitem__(self, i):
        if i == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(i)


class Many(Samples):
    """A thousand tensors in each item."""

    def __getitem__(self, i):
        return [torch.full((10,), i + j) for j in range(1000)]


def loader(data, method="fork", workers=2, **options):
    context = shmring.multiprocessing.get_context(method)
    return DataLoader(data, num_workers=workers, multiprocessing_context=context, **options)


def assert_same(got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def leaves(batch):
    """A batch without its texts, which are compared as they are."""
    return {key: value for key, value in batch.items() if key != "text"}


@pytest.mark.parametrize("method", METHODS)
def test_batches_are_those_of_the_process_itself(method):
    data = Samples(6, side=320)  # an image of 1.2 MB
    count = 0
    for got, expected in zip(loader(data, method, 2, batch_size=2), DataLoader(data, 2), strict=True):
        assert_same(leaves(got), leaves(expected))
        assert got["text"] == expected["text"]
        count += 1
    assert count == 3


def test_persistent_workers_give_every_epoch():
    batches = loader(Samples(8), batch_size=2, persistent_workers=True)
    expected = list(DataLoader(Samples(8), 2))
    for _ in range(3):
        got = list(batches)
        assert_same([leaves(batch) for batch in got], [leaves(batch) for batch in expected])
    del batches


def test_an_iterable_data_set_is_shared_out():
    got = torch.cat(list(loader(Counting(), batch_size=4)))
    assert sorted(got.tolist()) == list(range(20))


def test_batches_are_writable_and_of_their_own():
    first, second = loader(Samples(4), batch_size=2)
    kept = second["image"].clone()
    first["image"].zero_()
    assert_same(second["image"], kept)


def test_pinning_works_where_there_is_a_device_and_is_a_warning_elsewhere():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = list(loader(Samples(4), batch_size=2, pin_memory=True))
    assert [batch["image"].is_pinned() for batch in batches] == [torch.accelerator.is_available()] * 2


def test_an_error_in_a_worker_is_raised_with_its_traceback():
    with pytest.raises(ZeroDivisionError, match=r"(?s)in DataLoader worker.*sample 5 is broken"):
        list(loader(Failing()))


def test_a_killed_worker_is_torchs_own_error():
    with pytest.raises(RuntimeError, match=r"DataLoader worker .*(killed by signal|exited unexpectedly)"):
        list(loader(Deadly()))


def test_an_iterator_left_half_way_leaves_nothing(monkeypatch):
    # Workers that take longer to end are killed.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 60 * PATIENCE)
    before = shared_names()
    batches = iter(loader(Samples(200), batch_size=1, prefetch_factor=20))
    workers = batches._workers
    next(batches)
    del batches
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert shared_names() == before


def test_a_thousand_tensors_a_batch_take_no_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        kept = list(loader(Many(6), batch_size=None))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [[int(x[0]) for x in item] for item in kept] == [[i + j for j in range(1000)] for i in range(6)]


def test_a_large_tensor_in_shared_memory_is_lent_and_every_other_one_is_copied():
    ours, theirs = shmring.multiprocessing.Pipe()
    for nbytes, is_shared, is_lent in ((1 << 20, True, True), (1 << 20, False, False), (1 << 10, True, False)):
        x = torch.zeros(nbytes, dtype=torch.uint8)
        if is_shared:
            x.share_memory_()
        with ThreadPoolExecutor(1) as executor:
            received = executor.submit(theirs.recv)
            ours.send([x])
            (got,) = received.result()
        got[0] = 7
        assert int(x[0]) == (7 if is_lent else 0)


def test_the_room_imports_no_torch():
    program = "import sys, shmring.multiprocessing as m; m.Queue().put({}); print('torch' in sys.modules)"
    assert run_python("-c", program).strip() == "False"
