"""Messages between processes: channels, records, fan-in, broadcast, queues."""
