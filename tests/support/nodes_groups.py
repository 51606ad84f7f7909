"""A communicator over several nodes in one process, on a wire that a test makes: what the calls of one rank do."""

from collections import deque
from types import SimpleNamespace

import shmring
from shmring.nodes.communicator import NodesCommunicator
from shmring.nodes.executor import NodesExecutor
from shmring.nodes.messages import NodesMessages
from shmring.nodes.plan.layout import Layout
from shmring.nodes.transfers import Transfers
from shmring.nodes.wire import WireError


class OwnGroup:
    """What a `NodesGroup` is to rank 0, alone on its node; no failure breaks it.

    Parameters
    ----------
    size : int
        Ranks, each on a node of its own. One: nothing is sent.
    **methods
        Of the wire.
    """

    rank, has_backlog, is_closed, is_inherited, is_broken = 0, False, False, False, False

    def __init__(self, size=1, **methods):
        self.name, self.size, self.nodes = "group", size, [[r] for r in range(size)]
        self.layout = Layout(self.nodes)
        self.local = shmring.init(rank=0, size=1)
        self.config = self.local.config
        self.wire = SimpleNamespace(
            inbox=deque(), poll=self.check_usable, listen=id, rank=0, size=size, name="wire", short_nbytes=1,
            is_passive=False, **{"abandon": id, **methods},
        )  # fmt: skip
        self.wire.transfers = Transfers(self.wire)
        self.messages = NodesMessages(self, self.wire)
        self.executor = NodesExecutor(self, self.local.executor, True)
        self.comm = NodesCommunicator(self)

    def check_usable(self):
        pass

    check_node = check_usable

    def fail(self, error, *_):
        return error.error if isinstance(error, WireError) else error
