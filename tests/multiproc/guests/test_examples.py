"""The examples run as they say they do."""

import re

import pytest
from support.documents import blocks
from support.installed import ROOT
from support.programs import run_in_launcher, run_python

EXAMPLES = ROOT / "examples"


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_hello_all_reduce_runs_under_the_launcher(size):
    output = run_in_launcher(size, EXAMPLES / "hello_all_reduce.py")
    assert f"1 + ... + {size} = [{size * (size + 1) / 2:g}." in output
    assert f"{size} ranks met" in output


def test_spawn_sum_runs_without_a_launcher():
    assert "= 49999995000000 on each of 4 ranks" in run_python(EXAMPLES / "spawn_sum.py")


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [2, 4])
def test_objects_runs_under_the_launcher(size):
    output = run_in_launcher(size, EXAMPLES / "objects.py")
    assert f"{{'rank': {size - 1}, 'words': {size}, 'last': {float(size)}}}" in output
    assert "refused: rank 0 cannot pickle" in output


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [2, 4])
def test_groups_runs_under_the_launcher(size):
    output = run_in_launcher(size, EXAMPLES / "groups.py")
    assert f"even ranks: {sum(range(0, size, 2))}, odd ranks: {sum(range(1, size, 2))}" in output


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [2, 4])
def test_shrink_and_go_on_runs_without_a_launcher(size):
    output = run_python(EXAMPLES / "shrink_and_go_on.py", str(size))
    assert f"rank {size - 1} died" in output
    assert f"{size - 1} ranks went on" in output


def test_ping_pong_plays_with_three_balls():
    output = run_in_launcher(2, EXAMPLES / "ping_pong.py")
    assert output.count("bytes there and back") == 3


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_pipeline_computes_what_one_process_would(size):
    output = run_in_launcher(size, EXAMPLES / "pipeline.py")
    assert f"8 batches went through {size} stages" in output


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [2, 4])
def test_shared_arrays_runs_under_the_launcher(size):
    output = run_in_launcher(size, EXAMPLES / "shared_arrays.py")
    assert f"{size} ranks summed 4000000 bytes each: {size * (size + 1) / 2:g} everywhere" in output


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [2, 4])
def test_overlap_sums_in_the_background(size):
    output = run_in_launcher(size, EXAMPLES / "overlap.py")
    assert f"6 gradients of 200000 elements summed in the background over {size} ranks" in output


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_persistent_plan_iterates_to_the_eigenvalue(size):
    output = run_in_launcher(size, EXAMPLES / "persistent_plan.py")
    assert "after 200 calls of one plan" in output
    assert "all_gather" in output


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_variable_counts_runs_under_the_launcher(size):
    output = run_in_launcher(size, EXAMPLES / "variable_counts.py")
    assert f"rows from each rank: {list(range(1, size + 1))}" in output
    assert f"{10 * size} words came" in output


@pytest.mark.sample(1)
@pytest.mark.parametrize("loaders", [1, 3])
def test_loaders_feed_a_trainer(loaders):
    output = run_python(EXAMPLES / "data_loader.py", str(loaders))
    assert f"{40 * loaders} batches from {loaders} loaders" in output
    assert float(re.search(r"off by (\S+)", output).group(1)) < 1e-3


@pytest.mark.sample(1)
@pytest.mark.parametrize("actors", [1, 3])
def test_actors_teach_a_learner(actors):
    output = run_python(EXAMPLES / "actors_and_learner.py", str(actors))
    assert f"{4000 * actors} steps of {actors} actors, the best arm is 2" in output


def test_several_machines_prints_the_same_alone_and_under_the_launcher():
    alone = run_python(EXAMPLES / "several_machines.py")
    assert alone.startswith("mean ")
    assert run_in_launcher(4, EXAMPLES / "several_machines.py") == alone


def test_every_example_is_run_here_or_with_its_framework():
    elsewhere = {"char_gpt.py", "jax_train.py", "parallel_gpt.py", "sentence_embeddings.py", "shared_gradients.py"}
    assert {path.name for path in EXAMPLES.iterdir() if path.suffix == ".py"} - elsewhere == {
        "actors_and_learner.py",
        "data_loader.py",
        "groups.py",
        "hello_all_reduce.py",
        "latest_value.py",
        "lightning_data_loader.py",
        "objects.py",
        "overlap.py",
        "persistent_plan.py",
        "ping_pong.py",
        "pipeline.py",
        "pool_over_arrays.py",
        "several_machines.py",
        "shrink_and_go_on.py",
        "shared_arrays.py",
        "spawn_sum.py",
        "torch_data_loader.py",
        "variable_counts.py",
        "vector_env.py",
    }


def test_the_examples_in_the_readme_are_short():
    for block in blocks("python"):
        if block.page == "README.md":
            assert len([line for line in block.code.splitlines() if line.strip()]) <= 10


def test_the_readme_names_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert "\npip install . && shmring demo\n" in text
    assert "\npip install '.[test]' && pytest\n" in text


def test_pool_over_arrays_runs_with_both_libraries():
    output = run_python(EXAMPLES / "pool_over_arrays.py", "3")
    assert re.search(r"shmring\.multiprocessing: [\d.]+ s, multiprocessing: [\d.]+ s \(sum \d+", output)


def test_readers_of_the_latest_value_see_the_last_one():
    output = run_python(EXAMPLES / "latest_value.py", "200")
    assert len(re.findall(r"a reader saw \d+ of 200 readings, the first was \d+, the last 200\n", output)) == 3


@pytest.mark.torch
def test_torch_data_loader_gives_the_same_with_our_context():
    pytest.importorskip("torch")
    total = sum(100 * i + 4950 for i in range(64))
    assert f"the same sum both ways: {total} {total}" in run_python(EXAMPLES / "torch_data_loader.py")


@pytest.mark.torch
@pytest.mark.parametrize("library", ["lightning", "accelerate"])
def test_trainers_take_a_data_loader_of_our_context(library):
    pytest.importorskip(library)
    output = run_python(EXAMPLES / "lightning_data_loader.py", library)
    assert f"{library}: weights [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]" in output.replace("-0.0", "0.0")


def test_vector_env_steps_as_many_as_it_should():
    pytest.importorskip("gymnasium")
    output = run_python(EXAMPLES / "vector_env.py", "CartPole-v1", "4", "2")
    assert re.search(r"RingVectorEnv: \d+ steps a second\nAsyncVectorEnv: \d+", output)
