"""A program for torchrun: rank 1 kills itself at its first start; all come through at their second."""

import os
import sys

import torch
import torch.distributed as dist

import shmring
import shmring.torch

place = sys.argv[1]
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("shmring")
rank, x = dist.get_rank(), torch.ones(1000)
try:
    for step in range(10):
        if attempt == 0 and step == 5 and rank == 1:
            os.kill(os.getpid(), 9)
        x.fill_(rank)
        dist.all_reduce(x)
except shmring.PeerLostError as error:
    with open(f"{place}/lost.{rank}.{attempt}", "w") as file:
        file.write(str(error.rank))
    raise
with open(f"{place}/done.{rank}.{attempt}", "w") as file:
    file.write(str(x[0].item()))
dist.destroy_process_group()
