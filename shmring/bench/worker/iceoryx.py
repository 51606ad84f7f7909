"""iceoryx2: publish and subscribe byte slices, with an event to wake the receiver."""

from __future__ import annotations

import ctypes
import math
import queue
import time
from typing import Any

import iceoryx2 as iox
import numpy as np

from .channel import CAPACITY_NBYTES
from .channel import Backend as Base


class Backend(Base):
    """A publisher and a subscriber for each row."""

    def __init__(self, task: dict, barrier, rank: int) -> None:
        super().__init__(task, barrier, rank)
        iox.set_log_level(iox.LogLevel.Fatal)
        self.node = iox.NodeBuilder.new().create(iox.ServiceType.Ipc)
        self.tick, self.name = iox.Duration.from_millis(100), task["folder"]

    def open(self, ends, nbytes: int) -> None:
        ports = [self._service(nbytes, direction) for direction in range(2)]
        (service, event), (back, back_event) = ports[self.rank], ports[1 - self.rank]
        strategy = iox.BackpressureStrategy.RetryUntilDelivered
        builder = service.publisher_builder().initial_max_slice_len(max(nbytes, 64))
        self.publisher = builder.backpressure_strategy(strategy).create()
        self.notifier, self.listener = event.notifier_builder().create(), back_event.listener_builder().create()
        self.subscriber = back.subscriber_builder().create()

    def _service(self, nbytes: int, direction: int) -> tuple[Any, Any]:
        name = iox.ServiceName.new(f"{self.name}/{nbytes}/{direction}")
        depth = max(2, min(256, CAPACITY_NBYTES // max(nbytes, 64)))
        service = self.node.service_builder(name).publish_subscribe(iox.Slice[ctypes.c_uint8])
        service = service.enable_safe_overflow(False).subscriber_max_buffer_size(depth).open_or_create()
        return service, self.node.service_builder(name).event().open_or_create()

    def send(self, message: Any) -> None:
        array = np.frombuffer(message, np.uint8)
        loan = self.publisher.loan_slice_uninit(array.nbytes)
        ctypes.memmove(loan.payload_ptr, array.ctypes.data, array.nbytes)
        loan.assume_init().send()
        self.notifier.notify()

    def recv(self, until: float = math.inf) -> bytes:
        while (sample := self.subscriber.receive()) is None:
            if time.monotonic() > until:
                raise queue.Empty
            self.listener.timed_wait(self.tick)
        return bytes(sample.payload().as_memory_view())

    def recv_within(self, seconds: float) -> bytes:
        return self.recv(time.monotonic() + seconds)
