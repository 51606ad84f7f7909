"""vLLM's CPU platform with its communication on shmring, and its queues between processes, on any platform.

    SHMRING_VLLM=1 vllm serve MODEL --tensor-parallel-size 2            # both
    SHMRING_VLLM_QUEUE=1 vllm serve MODEL --tensor-parallel-size 2      # the queues alone

vLLM finds `register` and `register_queue` by entry points of the package and calls them in each of its processes.
Without the environment variables vLLM runs as if shmring were not installed (``docs/inference.md``).
"""

from __future__ import annotations

import os

ASKED_BY = "SHMRING_VLLM"
QUEUE_ASKED_BY = "SHMRING_VLLM_QUEUE"

_NO = ("", "0", "false", "no", "off")


def register() -> str | None:
    """Name the platform class for vLLM. Called by vLLM, through the entry point ``vllm.platform_plugins``.

    Returns
    -------
    str or None
        The class's dotted name if ``SHMRING_VLLM=1`` is in the environment; else None.
    """
    return "shmring.vllm.platform.ShmringCpuPlatform" if _is_on(ASKED_BY) else None


def register_queue() -> None:
    """Replace vLLM's message queue in this process, if ``SHMRING_VLLM_QUEUE=1`` or, without that variable,
    ``SHMRING_VLLM=1`` is in the environment. Called by vLLM, through the entry point ``vllm.general_plugins``; may be
    called again.
    """
    if _is_on(QUEUE_ASKED_BY if QUEUE_ASKED_BY in os.environ else ASKED_BY):
        from shmring.vllm.queue import install

        install()


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() not in _NO
