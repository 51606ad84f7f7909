"""A program of two nodes: one rank sends and ends at once, the other receives later. No rank destroys the group."""

import os
import sys
import time

import torch
import torch.distributed as dist

import shmring.torch  # noqa: F401

sender = int(sys.argv[1])
rank = int(os.environ["RANK"])
os.environ["SHMRING_NODE"] = str(rank)
dist.init_process_group("shmring")
if rank == sender:
    for k in range(3):
        dist.send(torch.tensor([k]), 1 - rank)
else:
    for k in range(3):
        time.sleep(0.3)
        x = torch.zeros(1, dtype=torch.int64)
        dist.recv(x, sender)
        assert x.item() == k, (x, k)
    print("all have come")
