"""Open files in objects: of connections, sockets, ends of channels, queues, tensors that are lent.

multiprocessing's own pickler knows how to pass them: its reducers leave each open file with a server in the sending
process, which gives it once, to a process of the same family (core/memory/family.py). So an object with open files can
go to one process of this family; else it is refused where it is sent. Without these reducers some objects would be
pickled as the bare *number* of a descriptor, which is another file's where they arrive.
"""

from __future__ import annotations

import os
from collections.abc import Callable

# Why open files cannot be passed. In a collective an error has room for 200 bytes.
_WHAT = "an open file (connection, socket, channel or queue) can be passed only "
STRANGERS = _WHAT + "within one program and its children: use shmring.open_channel"
NOT_ONE = _WHAT + "to one other process: send it to each by itself"
ENDED = _WHAT + "while its sender runs: send it by a channel before that ends"


class OpenFileError(TypeError):
    """An object with an open file that cannot be passed."""


def refusing(text: str) -> Callable:
    """A reducer of an open file left with the server: takes it back, and refuses."""

    def refuse(left: object) -> tuple:
        os.close(left.detach())  # type: ignore[attr-defined]
        raise OpenFileError(text)

    return refuse
