"""The process groups of shmring that `takeover` makes in place of gloo's."""

from __future__ import annotations

from shmring.torch.processgroup import ProcessGroup


class GlooGroup(ProcessGroup):
    """A `shmring.torch.ProcessGroup` under the name of gloo, on one machine."""

    _recorded_as = "gloo"
    _in_background = "shmring: {} in the background"  # gloo has one event that begins with its name for each call

    def name(self) -> str:
        """The name that the program asked for.

        C++ calls `getBackendName`, which is shmring's: with the name gloo DistributedDataParallel would look for gloo's
        class.
        """
        return "gloo"
