"""Locks are entered as locks: leaving a condition is Python code, in which a signal handler may raise."""

import re
from pathlib import Path

import shmring

SOURCES = {path: path.read_text() for path in Path(shmring.__file__).parent.rglob("*.py")}


def test_no_condition_is_entered():
    conditions = {name for text in SOURCES.values() for name in re.findall(r"(\w+) = threading\.Condition\(", text)}
    assert conditions
    entered = re.compile(rf"with [^:]*\b({'|'.join(conditions)})\b\s*:")
    assert not [f"{path}: {found[0]}" for path, text in SOURCES.items() for found in entered.finditer(text)]
