"""The single-producer, single-consumer ring: the ring itself, blocking on it, message framing."""

from shmring.ring.end import Consumer, Producer
from shmring.ring.spsc import format_ring, ring_nbytes

__all__ = ["Consumer", "Producer", "format_ring", "ring_nbytes"]
