"""What users see: `dir()` of the package and of live objects lists the documented names, and no other."""

import inspect
import re
import secrets
from pathlib import Path

import numpy as np

import shmring
import shmring.ring
from shmring.nodes.communicator import NodesCommunicator

ROOT = Path(__file__).parents[2]
REFERENCE = "\n".join(page.read_text() for page in ROOT.glob("docs/site/api/*.md"))


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def documented(kind):
    """The public names of a class that have a docstring, or stand in "Attributes" of its own docstring or a base's."""
    found = set()
    for base in kind.__mro__:
        attributes = (inspect.getdoc(base) or "").partition("\nAttributes\n----------\n")[2].partition("\n\n")[0]
        found |= set(re.findall(r"\w+", " ".join(re.findall(r"^([\w, ]+?)(?: :.*)?$", attributes, re.MULTILINE))))
        members = {name: value for name, value in vars(base).items() if hasattr(value, "__get__")}
        texts = {name: value.__doc__ or "" for name, value in members.items()}
        found |= {name for name, text in texts.items() if text and not text.startswith("Alias for field")}
    return {name for name in found if not name.startswith("_")}


def test_the_package_shows_its_public_names_and_the_reference_has_each():
    names = {name for name in shmring.__all__ if not name.startswith("_")}
    assert public(shmring) == names | {"config", "dtypes", "errors", "ring", "typing"}
    rest = {name for name in names if not re.search(rf"(::|^ +) ?shmring\.{name}\b", REFERENCE, re.MULTILINE)}
    assert rest == {name for name in rest if name in vars(shmring.errors)}, "no entry in docs/site/api"


def test_no_page_for_users_names_a_private_attribute():
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/site/**/*.md")]
    private = re.compile(r"\bcomm\.(?:_\w+|engine|executor|messages|object_turn)\b")
    assert {page.name: found for page in pages if (found := private.findall(page.read_text()))} == {}


def test_live_objects_show_what_their_docstrings_describe(tmp_path):
    x = np.ones(4096)
    ring = memoryview(bytearray(shmring.ring.ring_nbytes(8, 64) + 128))
    with (
        shmring.init(rank=0, size=1, session=secrets.token_hex(8)) as comm,
        comm.trace(tmp_path) as timeline,
        comm.share(x) as shared,
        shmring.Block(x) as block,
        shmring.Latest(64) as latest,
    ):
        shmring.ring.format_ring(ring, 8, 64)
        request = comm.isend(x, 0)
        latest.write(b"x")
        things = [
            *(comm, timeline, shared, block, latest, request, comm.recv(x, 0), comm.plan("all_reduce", x)),
            *(comm.all_reduce(x, async_op=True), latest.lease()),
            *(*shmring.channel(), *shmring.channel(dtype="f8"), shmring.fan_in(1)[1], *shmring.list_channels()),
            *(shmring.Queue(), shmring.JoinableQueue(), shmring.topology(), shmring.Leftover("/name", 0, "live", 1)),
            *(shmring.ring.Producer(ring), shmring.ring.Consumer(ring)),
        ]
        for thing in things:
            assert public(thing) == documented(type(thing)), type(thing)
    shown = {type(thing).__name__ for thing in things}
    held = {name for name in shmring.__all__ if inspect.isclass(getattr(shmring, name))} - set(vars(shmring.errors))
    assert held - shown == set()
    assert documented(NodesCommunicator) - documented(shmring.Communicator) == {"local"}
