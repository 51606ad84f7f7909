"""The protocols, checked by spin in every interleaving: each model holds, and each of its mutations is found faulty.

A model is a page of Promela beside this file. The comment at its head lists what it abstracts from and what its
mutations break. That the mutations are found shows that the model can fail. ``memory.pml`` has the weak memory that all
models use.

To look at one: ``spin -run -DMUTATION=1 waiting.pml`` and then ``spin -t -p waiting.pml`` for the way to the fault.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(
    not (shutil.which("spin") and shutil.which("gcc")), reason="spin is not installed (Debian: apt install spin gcc)"
)

ANY, BATCH, DEATH, FUTEX, TSO, ROOT, STOP = "-DANY", "-DBATCH", "-DDEATH", "-DFUTEX", "-DTSO", "-DROOT", "-DSTOP"
GIVES_UP, LEASE = "-DGIVES_UP", "-DLEASE"


def mutations(*numbers, way=()):
    """The options of these mutations, each run in this way."""
    return [[f"-DMUTATION={number}", *way] for number in numbers]


# Model -> the ways to run it that must hold, and the ways to run it that must be found faulty.
MODELS = {
    "ring": ([[], [DEATH], [TSO]], mutations(1, 2, 3, 4, 5, 6)),
    "waiting": (
        [
            [],
            [TSO],
            [DEATH],
            ["-DNWAKERS=1"],
            ["-DNWAKERS=1", DEATH],
            [ANY, TSO],
            [ANY, BATCH],
            [ANY, FUTEX],
            [ANY, FUTEX, TSO],
            ["-DNWAKERS=1", ANY, FUTEX, DEATH],
        ],
        mutations(1, 2, 3, 4, 5, 7, 8)
        + mutations(1, 2, way=[TSO])
        + mutations(6, way=[DEATH])
        + mutations(1, 2, 3, 4, 5, 8, way=[ANY])
        + mutations(1, way=[ANY, BATCH])
        + mutations(1, 2, 3, 4, 5, 9, way=[ANY, FUTEX])
        + mutations(6, way=["-DNWAKERS=1", ANY, FUTEX, DEATH]),
    ),
    "outbox": (
        [[], [DEATH], [ROOT], [ROOT, DEATH], ["-DNRANKS=3", "-DNROUNDS=3", TSO], ["-DNRANKS=3", "-DNROUNDS=3", ROOT]],
        mutations(1, 4) + mutations(2, 3, 5, 7, way=[ROOT]) + mutations(6, way=[DEATH]),
    ),
    "exchange": ([[], [TSO], [DEATH]], mutations(1, 2, 3, 4, 5) + mutations(6, way=[DEATH])),
    "ahead": ([[], [TSO], ["-DNPEERS=1"]], mutations(1, 2, 3)),
    "trouble": (
        [[], [DEATH], [STOP]],
        mutations(1, 3, 5) + mutations(2, way=[DEATH]) + mutations(4, way=[STOP]),
    ),
    "latest": (
        [[], [DEATH, "-DNVERSIONS=3"], [TSO], [LEASE], [LEASE, DEATH, "-DNVERSIONS=3"], [LEASE, TSO]],
        mutations(1, 2, 3, 4, 5) + mutations(1, 2, 3, 4, 5, 6, 7, 8, way=[LEASE]),
    ),
    "lock": (
        [[], [TSO], [DEATH], [GIVES_UP, TSO]],
        mutations(1, 2, 3, 8) + mutations(4, way=[GIVES_UP]) + mutations(5, 6, 7, way=[DEATH]),
    ),
    "pair_queue": ([[], [DEATH], [TSO]], mutations(1, 2, 3, 4, 5, 6, 7)),
}


def check(model, options, folder):
    """Run spin over every state; (errors found, states stored, output)."""
    for file in HERE.glob("*.pml"):
        shutil.copy(file, folder)
    say = ["spin", *options, "-a", f"{model}.pml"]
    made = subprocess.run(say, cwd=folder, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    # BFS would find shorter ways; depth first needs less memory. COLLAPSE: states are mostly counters. No -O: to
    # optimize takes longer than these few states do.
    subprocess.run(
        ["gcc", "-O0", "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=1500", "-o", "pan", "pan.c"],
        cwd=folder,
        check=True,
    )
    done = subprocess.run(["./pan", "-m20000"], cwd=folder, capture_output=True, text=True)
    text = done.stdout + done.stderr
    errors = re.search(r"errors: (\d+)", text)
    states = re.search(r"(\d+) states, stored", text)
    assert errors, text
    assert states, text
    assert "max search depth too small" not in text, text
    assert "Search not completed" not in text or int(errors[1]) > 0, text
    return int(errors[1]), int(states[1]), text


def named(options):
    return " ".join(option.removeprefix("-D") for option in options) or "plain"


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("model", "options"),
    [pytest.param(m, o, id=f"{m} {named(o)}") for m, (sound, _) in MODELS.items() for o in sound],
)
def test_the_protocol_holds_in_every_interleaving(model, options, tmp_path):
    errors, states, text = check(model, options, tmp_path)
    print(f"{model} {named(options)}: {states} states")
    assert errors == 0, text
    assert states > 100


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("model", "options"),
    [pytest.param(m, o, id=f"{m} {named(o)}") for m, (_, faulty) in MODELS.items() for o in faulty],
)
def test_a_mutation_is_found_faulty(model, options, tmp_path):
    errors, _, text = check(model, options, tmp_path)
    assert errors > 0, text


def test_every_mutation_that_a_model_names_is_run():
    for model, (_, faulty) in MODELS.items():
        text = (HERE / f"{model}.pml").read_text()
        spoken = set(re.findall(r"^ \*   (\d+)  ", text, re.MULTILINE))
        run = {option.removeprefix("-DMUTATION=") for options in faulty for option in options if "MUTATION" in option}
        assert spoken == run, model
