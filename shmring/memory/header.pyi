from collections.abc import Sequence
from typing import NamedTuple

from shmring.memory.mapping import Mapping

MAGIC: int
LAYOUT_VERSION: int
HEADER_NBYTES: int
OUTBOX: int
RING: int
ARRAY: int
CHANNEL: int
FAILURE_NOTICE: int
KIND_NAMES: dict[int, str]

class Header(NamedTuple):
    magic: int
    version: int
    header_nbytes: int
    nbytes: int
    kind: int
    uid: int
    boot_id: bytes
    nonce: bytes
    rank: int
    size: int
    params: tuple[int, ...]
    pid: int
    start_time: int

def stamp(
    mapping: Mapping, *, kind: int, boot_id: bytes, nonce: bytes, rank: int, size: int, params: Sequence[int]
) -> None: ...
def found_version(mapping: Mapping) -> int | None: ...
def announce(mapping: Mapping) -> None: ...
def is_ready(mapping: Mapping) -> bool: ...
def read(mapping: Mapping) -> Header: ...
def set_attached(mapping: Mapping, value: int) -> None: ...
def attached(mapping: Mapping) -> int: ...
def may_be_dead(mapping: Mapping) -> bool: ...
