"""The base of the mixins that `shmring.Communicator` is put together from."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shmring.collective.data_movement import DataMovement as CommunicatorMixin
else:

    class CommunicatorMixin:
        """Empty; to type checkers it has what a mixin may use: rank, size, engine, and the collectives on arrays."""
