"""How ranks combine arrays: plans, their execution, the calls, messages between ranks, and how ranks connect."""
