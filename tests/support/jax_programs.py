"""Programs of JAX for tests: N processes of a script, what each reports, how each ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

LIMIT_S = 240 * float(os.environ.get("SHMRING_PATIENCE", "1"))

# What the programs share.
PROLOGUE = """
import inspect, json, os, signal, sys, time
FIRST
import jax, jax.numpy as jnp, numpy as np
# How long JAX waits at exit for processes that are gone, in releases that have the options.
QUICK = {"heartbeat_timeout_seconds": 60, "shutdown_timeout_seconds": 60}
QUICK = {name: QUICK[name] for name in QUICK if name in inspect.signature(jax.distributed.initialize).parameters}
START
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map
rank, n = jax.process_index(), jax.process_count()

def report(**what):
    with open(os.path.join(FOLDER, str(rank)), "a") as file:
        print(json.dumps(what), file=file)

def mesh(shape=None, names=("x",), devices=None):
    devices = jax.devices() if devices is None else devices
    return Mesh(np.array(devices).reshape(shape or (len(devices),)), names)

def spread(x, mesh, *names):
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, P(*names)), lambda index: x[index])

def mapped(f, mesh, ins, outs):
    return jax.jit(shard_map(f, mesh=mesh, in_specs=ins, out_specs=outs))

def own(x):
    return np.asarray(x.addressable_data(0))

def meet(ranks):
    '''Wait until these have compiled what they will call, so that none is late for the others.'''
    place = os.path.join(FOLDER, "met")
    os.makedirs(place, exist_ok=True)
    open(os.path.join(place, str(rank)), "w").close()
    while not {str(one) for one in ranks} <= set(os.listdir(place)):
        time.sleep(0.01)

def attempt(f, *args):
    '''The text of the error in which a call ends, with its kind; None if it does not.'''
    try:
        jax.block_until_ready(f(*args))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""
BARE = "jax.distributed.initialize()"


class Ended(NamedTuple):
    """How the processes ended, what they wrote, and what each has reported."""

    status: int
    output: str
    reports: list[dict[str, Any]]


def run_program(
    folder: Path, n: int, body: str, *, first="", start=BARE, options=("--jax",), status: int | None = 0, **environ: str
) -> Ended:
    """Run ``body`` after the prologue in ``n`` processes of ``shmring run``, and ``first`` before the import of jax."""
    reports = folder / "reports"
    reports.mkdir(exist_ok=True)
    script = folder / "program.py"
    prologue = PROLOGUE.replace("FIRST", first).replace("START", start).replace("FOLDER", repr(str(reports)))
    script.write_text(prologue + textwrap.dedent(body))
    command = [sys.executable, "-m", "shmring", "run", "--grace", str(LIMIT_S), "-n", str(n), *options, str(script)]
    done = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    output = done.stdout + done.stderr
    assert status is None or done.returncode == status, f"status {done.returncode}\n{output}"
    found = []
    for rank in range(n):
        lines = (reports / str(rank)).read_text().splitlines() if (reports / str(rank)).exists() else []
        found.append({key: value for line in lines for key, value in json.loads(line).items()})
    return Ended(done.returncode, output, found)
