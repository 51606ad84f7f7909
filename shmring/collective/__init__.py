"""The collective calls of a communicator, shared arrays, groups, objects, asynchronous work."""
