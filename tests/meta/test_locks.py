"""No lock of Python's is entered by ``with``: a signal handler may raise between them, on CPython 3.14 any lock."""

import re
from pathlib import Path

import shmring

ROOM = Path(shmring.__file__).parent
SOURCES = {path.relative_to(ROOM).as_posix(): path.read_text() for path in ROOM.rglob("*.py")}
MADE = re.compile(r"(\w+)(?:: [\w.]+)? = (?:threading\.)?(?:R?Lock|Condition|Semaphore)\(")

# Entered while signals are held.
ALLOWED = {("launch/spawn.py", "_export_lock")}


def test_no_lock_is_entered():
    locks = {name for text in SOURCES.values() for name in MADE.findall(text)}
    entered = re.compile(rf"^ *with .*\b({'|'.join(locks)})\b", re.MULTILINE)
    assert {(path, name) for path, text in SOURCES.items() for name in entered.findall(text)} == ALLOWED
