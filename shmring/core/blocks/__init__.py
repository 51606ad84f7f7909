"""Blocks: memory without a name that processes hand to each other by reference, and that ends with its last holder."""
