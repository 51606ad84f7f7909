"""The single-producer, single-consumer ring: the ring itself, blocking on it, message framing."""
