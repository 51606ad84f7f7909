"""The base of all rooms: C memory, timeouts, futures, the learner, forks and exits."""
