"""A camera that crashes: a recorder that must get every frame, a detector that wants the newest, and a late viewer.

python examples/camera.py [FRAMES]
"""

import multiprocessing
import os
import queue
import signal
import sys
import time
from typing import Any

import numpy as np

import shmring

HEIGHT, WIDTH = 240, 320
FRAME_NBYTES = HEIGHT * WIDTH * 3


def shoot(first: int, count: int, to_recorder: shmring.Sender, newest: shmring.Latest[Any], crashes: bool) -> None:
    """Take frames. Each is copied twice: into the recorder's ring, and into the newest value."""
    frame = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    for number in range(first, first + count):
        frame[:] = number % 256
        frame[0, 0, :2] = divmod(number, 256)
        to_recorder.send(frame)
        newest.write(frame)
        time.sleep(0.002)
    if crashes:
        os.kill(os.getpid(), signal.SIGKILL)
    to_recorder.close()
    newest.close()


def number_of(frame: Any) -> int:
    """The number of a frame, all of whose pixels tell it."""
    number = int(frame[0, 0, 0]) * 256 + int(frame[0, 0, 1])
    assert (frame[1:] == number % 256).all()  # whole
    return number


def record(cameras: list[shmring.Receiver[Any]], results: shmring.Queue[str]) -> None:
    """Get all frames of each camera, in order, also those that it had sent before it crashed."""
    numbers: list[int] = []
    for frames in cameras:
        try:
            for frame in frames:
                numbers.append(number_of(frame))
        except shmring.PeerLostError:
            results.put("recorder: the camera crashed")
    assert numbers == list(range(numbers[-1] + 1))
    results.put(f"recorder: all {len(numbers)} frames")


def detect(newest: shmring.Latest[Any], results: shmring.Queue[str]) -> None:
    """Look at the newest frame for as long as one likes, where it lies. The camera does not wait."""
    version, seen = 0, list[int]()
    while True:
        try:
            with newest.lease(timeout=60, after=version) as frame:
                version = frame.version
                seen.append(number_of(frame.array))
                time.sleep(0.02)  # slower than the camera
                assert number_of(frame.array) == seen[-1]  # it was not overwritten meanwhile
        except shmring.PeerLostError:
            results.put("detector: the camera crashed; it waits for another one")
        except shmring.EndOfStreamError:
            break
    assert seen == sorted(set(seen))
    results.put(f"detector: up to frame {seen[-1]}")


def view(name: str, results: shmring.Queue[str]) -> None:
    """Come late, from another program, by name; wait for frames and for an order at the same time."""
    with shmring.Latest(name=name) as newest:
        first = number_of(newest.newer(timeout=60))
        while True:
            shmring.wait([newest], timeout=60)
            try:
                newest.newer(timeout=0)
            except (queue.Empty, shmring.PeerLostError):
                continue
            except shmring.EndOfStreamError:
                break
    results.put(f"viewer: late, from frame {first} on")


def main(count: int) -> None:
    """The first camera crashes after half of the frames, and a second one goes on."""
    context = multiprocessing.get_context("spawn")
    name, results = f"camera-{os.getpid()}", shmring.Queue()
    half = count // 2
    ends = [shmring.channel(16 << 20) for _ in range(2)]
    with shmring.Latest(FRAME_NBYTES, name=name) as newest:
        recorder = context.Process(target=record, args=([frames for _, frames in ends], results))
        detector = context.Process(target=detect, args=(newest, results))
        recorder.start()
        detector.start()
        camera = context.Process(target=shoot, args=(0, half, ends[0][0], newest, True))
        camera.start()
        newest.read(timeout=60)
        viewer = context.Process(target=view, args=(name, results))
        viewer.start()
        camera.join()
        print(f"the camera ended with {camera.exitcode}")
        for _ in range(2):
            print(results.get(timeout=60))  # the recorder and the detector know
        camera = context.Process(target=shoot, args=(half, count - half, ends[1][0], newest, False))
        camera.start()
        for _ in range(3):
            print(results.get(timeout=60))
        for process in (camera, recorder, detector, viewer):
            process.join()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
