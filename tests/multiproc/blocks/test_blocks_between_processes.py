"""Blocks that go from process to process: through every door, by every start method, and to their end."""

import asyncio
import concurrent.futures
import gc
import os
import pickle
import signal
import sys
import time
from queue import Full

import numpy as np
import pytest
from support.children import in_child, kill, status_of
from support.namespaces import STRANGER, in_new_pid_namespace, needs_pids, needs_stranger
from support.programs import run_program, run_python, run_shmring

import shmring
import shmring.multiprocessing
from shmring.core.blocks.look import held_blocks
from shmring.errors import BlockLostError

METHODS = ["fork", "spawn", "forkserver"]
NBYTES = 1 << 16


def context(method):
    return shmring.multiprocessing.get_context(method)


def contents(number):
    return np.full(NBYTES, number % 256, np.uint8)


def shared_nbytes():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Shmem:"))


# -- doors ------------------------------------------------------------------------------------------------------------


def make_and_put(queue, count):
    for number in range(count):
        queue.put(shmring.Block(contents(number)))


def make_and_send(end, count):
    send = end.send if isinstance(end, shmring.multiprocessing.connection.Connection) else end.send_object
    for number in range(count):
        send({"number": number, "blocks": [shmring.Block(contents(number))] * 2})


QUEUES = {
    "shmring.Queue": lambda ctx: shmring.Queue(),
    "Queue": lambda ctx: ctx.Queue(),
    "SimpleQueue": lambda ctx: ctx.SimpleQueue(),
    "JoinableQueue": lambda ctx: ctx.JoinableQueue(),
}


@pytest.mark.sample(4)
@pytest.mark.leaks  # the server of forkserver stays
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", QUEUES)
def test_blocks_in_a_queue_outlive_their_maker_which_has_exited(kind, method):
    ctx = context(method)
    queue = QUEUES[kind](ctx)
    maker = ctx.Process(target=make_and_put, args=(queue, 5))
    maker.start()
    maker.join()
    assert maker.exitcode == 0
    for number in range(5):
        np.testing.assert_array_equal(queue.get().array, contents(number))


@pytest.mark.sample(1)
@pytest.mark.leaks  # the server of forkserver stays
@pytest.mark.parametrize("method", METHODS)
def test_blocks_in_a_pipe_or_channel_outlive_their_maker_which_has_exited(method):
    ctx = context(method)
    sender, receiver = shmring.channel()
    there, here = ctx.Pipe()
    for end, receive in ((sender, receiver.recv), (there, here.recv)):
        maker = ctx.Process(target=make_and_send, args=(end, 3))
        maker.start()
        maker.join()
        assert maker.exitcode == 0
        for number in range(3):
            item = receive()
            assert item["number"] == number
            assert item["blocks"][0] is item["blocks"][1]
            np.testing.assert_array_equal(item["blocks"][0].array, contents(number))
    for end in (sender, receiver, there, here):
        end.close()


def test_blocks_in_a_queue_outlive_a_killed_maker_too():
    queue = shmring.Queue()
    ready, told = os.pipe()

    def maker():
        make_and_put(queue, 3)
        os.write(told, b"x")
        time.sleep(1000)

    pid = in_child(maker)
    os.read(ready, 1)
    kill(pid)
    for number in range(3):
        np.testing.assert_array_equal(queue.get().array, contents(number))
    os.close(ready)
    os.close(told)


def doubled(block):
    return shmring.Block(block.array * 2)


@pytest.mark.sample(1)
@pytest.mark.leaks  # the server of forkserver stays
@pytest.mark.parametrize("method", METHODS)
def test_tasks_and_results_of_a_pool(method):
    with context(method).Pool(2) as pool:
        for number, block in enumerate(pool.imap(doubled, (shmring.Block(contents(number)) for number in range(6)))):
            np.testing.assert_array_equal(block.array, contents(2 * number))


def total(block, queue):
    queue.put(int(block.array.sum()))


@pytest.mark.sample(1)
@pytest.mark.leaks  # the server of forkserver stays
@pytest.mark.parametrize("method", METHODS)
def test_arguments_of_a_process_are_held_until_it_has_them(method):
    ctx = context(method)
    queue = ctx.Queue()
    for number in (1, 2):
        process = ctx.Process(target=total, args=(shmring.Block(contents(number)), queue))
        process.start()
        assert queue.get() == number * NBYTES
        process.join()


def read_again_later(handle, queue):
    queue.put(int(pickle.loads(handle).array[0]))


@pytest.mark.leaks
def test_through_another_librarys_executor_while_the_maker_holds_it():
    block = shmring.Block(contents(3))
    with concurrent.futures.ProcessPoolExecutor(2) as executor:
        assert [int(x.array[0]) for x in executor.map(same, [block] * 4)] == [3] * 4


def same(block, held=[]):  # noqa: B006
    held.append(block)  # a result by a foreign transport must be held, too
    return block


def test_a_foreign_program_opens_a_handle_from_a_file(tmp_path):
    block = shmring.Block(np.arange(10))
    (tmp_path / "handle").write_bytes(pickle.dumps(block))
    program = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).array.sum())"
    assert run_python("-c", program, str(tmp_path / "handle")) == "45\n"
    block.close()
    program = (
        "import pickle, shmring, sys\n"
        "try: pickle.load(open(sys.argv[1], 'rb'))\n"
        "except shmring.BlockLostError as error: print(error.pid)"
    )
    assert run_python("-c", program, str(tmp_path / "handle")) == f"{os.getpid()}\n"


def test_a_reader_hands_it_on_after_the_maker_has_gone():
    there, back = shmring.Queue(), shmring.Queue()

    def reader():
        block = there.get()
        assert there.get() == "the maker has gone"
        back.put(pickle.dumps(block))  # by a foreign transport
        assert there.get() == "it was opened"

    pid = in_child(reader)
    block = shmring.Block(contents(9))
    there.put(block)
    del block
    there.put("the maker has gone")
    late = pickle.loads(back.get())
    np.testing.assert_array_equal(late.array, contents(9))
    there.put("it was opened")
    assert status_of(pid) == 0
    np.testing.assert_array_equal(late.array, contents(9))


def test_a_killed_holder_is_named():
    queue = shmring.Queue()

    def maker():
        block = shmring.Block(contents(1))
        queue.put(pickle.dumps(block))
        time.sleep(1000)

    pid = in_child(maker)
    handle = queue.get()
    assert pickle.loads(handle).array[0] == 1
    kill(pid)
    with pytest.raises(BlockLostError, match=f"process {pid}, which held it, has ended") as caught:
        pickle.loads(handle)
    assert caught.value.pid == pid


def test_many_readers_of_one_block_and_a_late_one():
    block = shmring.Block(np.arange(1000))
    queues = [shmring.Queue() for _ in range(4)]

    def reader(queue):
        assert queue.get().array.sum() == 499_500

    pids = [in_child(reader, queue) for queue in queues]
    for queue in queues[:-1]:
        queue.put(block)
    assert [status_of(pid) for pid in pids[:-1]] == [0, 0, 0]
    queues[-1].put(block)
    del block
    assert status_of(pids[-1]) == 0


def test_a_block_that_a_forked_child_has_inherited_is_never_overwritten():
    block = shmring.Block(contents(1))
    ready, told = os.pipe()

    def child():
        os.read(ready, 1)
        assert (block.array == 1).all()
        assert (pickle.loads(pickle.dumps(block)).array == 1).all()

    pid = in_child(child)
    block.close()
    for number in range(2, 50):
        shmring.Block(contents(number)).close()
    os.write(told, b"x")
    assert status_of(pid) == 0
    os.close(ready)
    os.close(told)


def sums_after(block, go, back):
    array = block.array
    back.put(int(array[0]))
    while go.get() == 0:
        pass
    back.put(int(array[0]))


@pytest.mark.leaks  # the server of forkserver stays
@pytest.mark.parametrize("method", METHODS)
def test_the_memory_of_an_argument_is_not_used_again_while_the_process_has_it(method):
    ctx = context(method)
    go, back = ctx.SimpleQueue(), ctx.SimpleQueue()
    block = shmring.Block(contents(1))
    process = ctx.Process(target=sums_after, args=(block, go, back))
    process.start()
    del block
    for number in range(2, 20):
        shmring.Block(contents(number)).close()
    assert back.get() == 1
    for number in range(2, 20):
        shmring.Block(contents(number)).close()
    go.put(1)
    assert back.get() == 1
    process.join()


def test_more_blocks_than_the_kernel_keeps_in_flight_wait_for_their_taker():
    queue, count = shmring.Queue(), 2000
    pid = in_child(lambda: make_and_put(queue, count))
    for number in range(count):
        assert queue.get().array[-1] == number % 256
    assert status_of(pid) == 0


def test_a_full_crate_is_queue_full():
    items = shmring.Queue()
    block, count = shmring.Block(b"x"), 0
    with pytest.raises(Full, match="as the kernel keeps in flight"):
        while True:
            items.put(block, timeout=0)
            count += 1
    assert [bytes(items.get()) for _ in range(count)] == [b"x"] * count
    items.put(block)
    assert bytes(items.get()) == b"x"


def test_a_coroutine_that_sends_blocks_awaits_room_for_them():
    sender, receiver = shmring.channel(1 << 10)

    def taker():
        for number in range(100):
            found, block = receiver.recv()
            assert found == number
            np.testing.assert_array_equal(block.array, contents(number))

    async def send():
        for number in range(100):
            await sender.send_object_async((number, shmring.Block(contents(number))))

    pid = in_child(taker)
    asyncio.run(send())
    assert status_of(pid) == 0
    sender.close()


def test_an_item_that_found_no_room_leaves_no_blocks_behind():
    queue, block = shmring.Queue(capacity_nbytes=1 << 10), shmring.Block(contents(1))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Full):
        while True:
            queue.put((block, bytes(100)), timeout=0)
    for _ in range(1000):  # more than the kernel would keep in flight
        with pytest.raises(Full, match="no room for an item"):
            queue.put((block, bytes(100)), timeout=0)
    while not queue.empty():
        assert (queue.get()[0].array == 1).all()
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_item_with_a_thousand_blocks():
    queue = shmring.Queue()
    queue.put([shmring.Block(np.array([number])) for number in range(1000)])
    assert [int(block.array[0]) for block in queue.get()] == list(range(1000))


def test_items_that_nobody_takes_end_with_the_queue():
    before = len(os.listdir("/proc/self/fd"))
    queue = shmring.Queue()
    for number in range(5):
        queue.put(shmring.Block(contents(number)))
    del queue
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 5  # what is kept for a moment for the next blocks


def test_consumers_share_a_queue_and_each_block_comes_once():
    items, results = shmring.Queue(), shmring.Queue()

    def consumer():
        while (item := items.get()) is not None:
            number, block = item
            assert (block.array == number % 256).all()
            results.put(number)

    pids = [in_child(consumer) for _ in range(3)]

    def maker(first):
        for number in range(first, first + 100):
            items.put((number, shmring.Block(contents(number % 256))))

    makers = [in_child(maker, first) for first in (0, 100)]
    assert sorted(results.get() for _ in range(200)) == list(range(200))
    for _ in pids:
        items.put(None)
    assert [status_of(pid) for pid in pids + makers] == [0] * 5


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["exit", "close", "kill"])
def test_the_memory_is_free_when_the_last_holder_has_ended(ending):
    nbytes = 400 << 20
    before = shared_nbytes()
    queue, told = shmring.Queue(), shmring.Queue()

    def holder():
        block = queue.get()
        told.put(int(block.array[-1]))
        if ending == "close":
            block.close()
        elif ending == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    pid = in_child(holder)
    block = shmring.Block.empty(nbytes, np.uint8)
    block.array[-1] = 7
    queue.put(block.seal())
    assert told.get() == 7
    assert os.fstat(block._pages.file.fd).st_blocks * 512 > nbytes
    del block
    assert status_of(pid) == (-signal.SIGKILL if ending == "kill" else 0)
    deadline = time.monotonic() + 60
    while shared_nbytes() > before + nbytes // 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert shared_nbytes() < before + nbytes // 2


# -- users and namespaces ---------------------------------------------------------------------------------------------


@needs_stranger
def test_another_user_gets_nothing():
    block = shmring.Block(contents(1))
    handle = pickle.dumps(block)

    def other():
        block.close()
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        with pytest.raises(shmring.SegmentError, match="another user's"):
            pickle.loads(handle)

    assert status_of(in_child(other)) == 0

    ready, told = os.pipe()

    def others_block():
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        mine = shmring.Block(contents(2))
        os.write(told, pickle.dumps(mine))
        time.sleep(1000)

    pid = in_child(others_block)
    with pytest.raises(shmring.SegmentError, match="another user's"):
        pickle.loads(os.read(ready, 1000))
    kill(pid)
    os.close(ready)
    os.close(told)


@needs_pids
def test_other_pid_namespaces():
    block, there, back = shmring.Block(np.arange(5)), shmring.Queue(), shmring.Queue()
    handle = pickle.dumps(block)

    def first_of_its_namespace():
        block.close()
        assert os.getpid() == 1
        try:
            back.put(int(pickle.loads(handle).array.sum()))  # the mount of /proc is the outer one: upwards, too
        except shmring.SegmentError as error:
            back.put(str(error))
        mine = shmring.Block(np.arange(7))
        assert pickle.loads(pickle.dumps(mine)).array.sum() == 21
        back.put(pickle.dumps(mine))
        back.put(int(there.get().array.sum()))
        there.get()

    pid = in_child(in_new_pid_namespace, first_of_its_namespace)
    assert back.get() == 10
    assert pickle.loads(back.get()).array.sum() == 21  # downwards the holder is found by its pid there
    there.put(block)
    assert back.get() == 10
    there.put(None)
    assert status_of(pid) == 0


@needs_pids
def test_a_holder_in_a_pid_namespace_that_cannot_be_seen_is_a_clear_error():
    block = shmring.Block(np.arange(5))
    program = (
        "import pickle, shmring\n"
        f"try: pickle.loads({pickle.dumps(block)!r})\n"
        "except shmring.SegmentError as error: print(error)"
    )
    done = run_program("unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", program)
    assert f"process {os.getpid()} of another PID namespace" in done.stdout


def test_info_and_top_show_who_holds_blocks():
    block = shmring.Block(np.zeros(1 << 20, np.uint8))
    queue = shmring.Queue()

    def holder():
        with queue.get():
            time.sleep(1000)

    pid = in_child(holder)
    block_of_both = shmring.Block(contents(1))
    queue.put(block_of_both)
    while (found := {held.pid: held for held in held_blocks()}).get(pid) is None or found[pid].nblocks < 2:
        time.sleep(0.01)  # the fork has given it one
    mine = found[os.getpid()]
    assert mine.nblocks >= 2
    assert mine.nbytes >= block.nbytes + NBYTES
    assert pid in mine.others
    assert os.getpid() in found[pid].others
    for command in (["info"], ["top", "--once", "--interval", "0.01"]):
        (line,) = (line for line in run_shmring(*command).stdout.splitlines() if f"pid {pid}: " in line)
        assert line.endswith(f"pid {pid}: {found[pid].describe().partition(': ')[2]}")
    kill(pid)


def test_no_name_and_no_resource_tracker():
    program = (
        "import os, numpy, shmring\n"
        "block = shmring.Block(numpy.ones(1 << 20))\n"
        "print(open('/proc/self/maps').read().count('/dev/shm'), 'multiprocessing' in __import__('sys').modules)\n"
        "print(os.path.exists(os.readlink(f'/proc/self/fd/{block._pages.file.fd}')))"
    )
    assert run_python("-c", program).split() == ["0", "False", "False"]
