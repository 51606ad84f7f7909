"""The platform: vLLM's own for CPUs, with groups of shmring and the device communicator of this package."""

from __future__ import annotations

from vllm.platforms import cpu_platform_plugin
from vllm.utils.import_utils import resolve_obj_by_qualname

import shmring.torch

_own = cpu_platform_plugin()
if _own is None:
    raise ImportError("SHMRING_VLLM=1 is set, but this vLLM is not built for CPUs: unset it, or install a CPU build")

shmring.torch.register()


class ShmringCpuPlatform(resolve_obj_by_qualname(_own)):  # type: ignore[misc]
    """vLLM's platform for this machine's CPUs; the class for AMD's Zen where vLLM would choose it.

    Attributes
    ----------
    dist_backend : str
        The backend of vLLM's device groups. The groups for coordination that vLLM makes beside them stay on gloo.
    """

    dist_backend = "shmring"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """The name of the class that makes the collectives of a vLLM group."""
        return "shmring.vllm.communicator.ShmringCommunicator"
