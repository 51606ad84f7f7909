"""Arrays in shared memory that all ranks of a communicator reach."""
