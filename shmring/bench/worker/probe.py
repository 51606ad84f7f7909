"""Lists the libraries of an interpreter that can compete, as one line of JSON; run in that interpreter."""

from __future__ import annotations

import importlib.util
import json
import platform
from pathlib import Path
from typing import Any


def main(deepspeed_source: str = "") -> int:
    """Look, and print."""
    found: dict[str, Any] = {"python": platform.python_version(), "numpy": _has("numpy"), "shmring": _has("shmring")}
    for name, look in (("mpi", _mpi), ("torch", _torch)):
        try:
            found[name] = look()
        except Exception as error:  # half-installed libraries fail in their own ways
            found[name] = {"problem": f"{type(error).__name__}: {error}".partition("\n")[0]}
    if found["torch"] and "problem" not in found["torch"]:
        found["deepspeed"] = _deepspeed(deepspeed_source)
    print(json.dumps(found))
    return 0


def title_of_mpi(text: str) -> str:
    """Name and version of the library in the text of `MPI_Get_library_version`."""
    text = text.replace("\0", " ").strip()
    if text.startswith("MPICH"):
        return "MPICH " + text.split("\n")[0].rpartition(":")[2].strip()
    if text.startswith("Open MPI"):
        return text.split(",")[0].replace("Open MPI v", "Open MPI ")
    return text.split("\n")[0].replace("(R)", "").replace("Library ", "").partition(" for ")[0].strip()


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _mpi() -> dict | None:
    if not _has("mpi4py"):
        return None
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    return {"title": title_of_mpi(MPI.Get_library_version()), "mpi4py": mpi4py.__version__}


def _torch() -> dict | None:
    if not _has("torch"):
        return None
    import torch
    import torch.distributed as dist

    groups = sorted(dist.Backend.backend_list) if dist.is_available() else []
    return {"version": torch.__version__, "groups": groups}


def _deepspeed(source: str) -> dict | None:
    """Find DeepSpeed's sources, in the folder given or in the installed package, and build its operator."""
    if not source:
        spec = importlib.util.find_spec("deepspeed")
        if spec is None or not spec.submodule_search_locations:
            return None
        source = str(Path(spec.submodule_search_locations[0]) / "ops")
    root = Path(source)
    releases = [
        file.read_text().strip() for file in (root / "version.txt", root.parent / "version.txt") if file.exists()
    ]
    try:
        from .deepspeed import build

        return {"release": "".join(releases[:1]), "library": build(str(root / "csrc"))}
    except Exception as error:
        return {"problem": f"{type(error).__name__}: {error}".partition("\n")[0]}
