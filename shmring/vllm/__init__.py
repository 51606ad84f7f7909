"""vLLM's CPU platform with its communication on shmring.

    SHMRING_VLLM=1 vllm serve MODEL --tensor-parallel-size 2

vLLM finds `register` by an entry point of the package and calls it in each of its processes. Without the environment
variable it answers that there is no platform, and vLLM runs as if shmring were not installed (``docs/inference.md``).
"""

from __future__ import annotations

import os

ASKED_BY = "SHMRING_VLLM"

_NO = ("", "0", "false", "no", "off")


def register() -> str | None:
    """Name the platform class for vLLM. Called by vLLM, through the entry point ``vllm.platform_plugins``.

    Returns
    -------
    str or None
        The class's dotted name if ``SHMRING_VLLM=1`` is in the environment; else None: no platform from here.
    """
    if os.environ.get(ASKED_BY, "").lower() in _NO:
        return None
    return "shmring.vllm.platform.ShmringCpuPlatform"
