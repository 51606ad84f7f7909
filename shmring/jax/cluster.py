"""The ranks of `shmring run` as a cluster of JAX: defining the class registers it."""

from __future__ import annotations

import os

from jax._src.clusters import ClusterEnv


class ShmringCluster(ClusterEnv):
    """Rank and size from the variables of `shmring run`, whose MASTER_PORT is a port that was free."""

    name = "shmring"

    @classmethod
    def is_env_present(cls) -> bool:
        """Whether `shmring run` started this process; torchrun keeps MASTER_PORT for itself."""
        return {"SHMRING_SESSION", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()

    @classmethod
    def get_coordinator_address(cls, timeout_secs=None, override_coordinator_port=None) -> str:
        """Return where process 0 listens."""
        return f"{os.environ['MASTER_ADDR']}:{override_coordinator_port or os.environ['MASTER_PORT']}"

    @classmethod
    def get_process_count(cls) -> int:
        """Return the number of ranks."""
        return int(os.environ["WORLD_SIZE"])

    @classmethod
    def get_process_id(cls) -> int:
        """Return this rank."""
        return int(os.environ["RANK"])


# Before those of launchers around this one, Slurm's for example.
ClusterEnv._cluster_types.insert(0, ClusterEnv._cluster_types.pop())
