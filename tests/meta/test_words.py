"""The field's words: the private vocabulary of earlier versions is in no source, test or page.

Each pattern has the word that replaces it. `ALLOWED` has the other meanings of a word, by file, each with its reason.
"""

import functools
import re

import pytest
from support.installed import ROOT

FOLDERS = ("shmring", "tests", "bench", "docs", "examples", "tools")
SUFFIXES = {".py", ".pyx", ".pxd", ".pyi", ".h", ".c", ".md", ".pml", ".sh"}

# Matched without regard to case; `_` counts as the end of a word, so that parts of identifiers are seen.
WORDS = {
    "whisper": "eager message",
    "errand": "request",
    "journey": "execution",
    "rouse|doze[sd]?(?![a-z])|hush": "wake, sleep, suppress",
    "regrets": "failure notice",
    "farewell|goodbye": "leave",
    "lifeline": "liveness",
    "spoilt": "corrupted",
    "strands?(?![a-z])": "helper thread",
    "lending": "lease",
    "overtak": "overwrite",
    "parcel|enclosure": "pickle, out-of-band buffer, unexpected message",
    "(?<![a-z])bells?(?![a-z])|(?<![a-z])toll(?![a-z])": "waiter word",
    "(?<![a-z])fans(?![a-z])": "fan-in, broadcast",
    "(?<![a-z])talks?(?![a-z])": "eager exchange",
    "(?<![a-z])lanes?(?![a-z])": "pair queue",
    "(?<![a-z])meetings?(?![a-z])": "rendezvous",
    "(?<![a-z])survey": "calibration",
    "(?<![a-z])alarms?(?![a-z])": "notifier",
    "(?<![a-z])(who|whom|whoever|nobody)(?![a-z])": "rank, process, thread",
    "(?<![a-z])(told|heard|hears?)(?![a-z])": "store, load, post, notice",
}
ALLOWED = {
    "(?<![a-z])lanes?(?![a-z])": {
        "shmring/kernel/vectors.h": "lanes of vector registers",
        "shmring/kernel/kernel_unit.h": "lanes of vector registers",
        "shmring/arrays/dlpack_abi.h": "a field of DLPack",
        "shmring/arrays/dlpack.pxd": "a field of DLPack",
        "shmring/arrays/array_view.pyx": "a field of DLPack",
        "tests/unit/arrays/test_dlpack.py": "a field of DLPack",
    },
    "(?<![a-z])(who|whom|whoever|nobody)(?![a-z])": {
        "CONTRIBUTING.md": "the rule itself",
        "tests/numa/test_nodes.py": "a user of the system",
    },
    "(?<![a-z])(told|heard|hears?)(?![a-z])": {"CONTRIBUTING.md": "the rule itself"},
}


@functools.cache
def sources(*folders):
    """Every file that is read, by its path within the checkout."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    if folders == FOLDERS:
        files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    by_hand = [path for path in files if path.suffix != ".c" or path.parent.name in ("kernel", "support")]
    return {str(path.relative_to(ROOT)): path.read_text() for path in by_hand if "build" not in path.parts}


@pytest.mark.parametrize(("pattern", "field_word"), WORDS.items(), ids=list(WORDS.values()))
def test_no_private_word_is_left(pattern, field_word):
    allowed = {"tests/meta/test_words.py", *ALLOWED.get(pattern, {})}
    found = [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for path, text in sources(*FOLDERS).items()
        if path not in allowed
        for match in re.finditer(pattern, text, re.IGNORECASE)
    ]
    assert not found, f"write {field_word}:\n" + "\n".join(found)


def test_every_exception_is_still_needed():
    for pattern, files in ALLOWED.items():
        for path in files:
            assert re.search(pattern, (ROOT / path).read_text(), re.IGNORECASE), f"{path} is no exception any more"
