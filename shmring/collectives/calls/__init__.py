"""The collective calls of a communicator; groups, objects, asynchronous work."""
