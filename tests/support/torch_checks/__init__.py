"""Checks that ranks of `torch.distributed` run, shared by the tests of one node and of several."""
