"""The single-producer, single-consumer ring over any memory that two processes share (docs/rings.md)."""

from shmring.core.ring.end import Consumer, Producer
from shmring.core.ring.spsc import format_ring, ring_nbytes

__all__ = ["Consumer", "Producer", "format_ring", "ring_nbytes"]
