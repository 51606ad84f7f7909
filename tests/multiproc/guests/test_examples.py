"""The examples run as they say they do."""

import re

import pytest
from support.documents import blocks
from support.installed import ROOT
from support.programs import run_in_launcher, run_python

EXAMPLES = ROOT / "examples"


# By name: how it is run, with which numbers of ranks or processes (all but the first with --long), what it prints then.
LAUNCHED, ALONE = (lambda path, n: run_in_launcher(n, path)), (lambda path, n: run_python(path, str(n)))
TABLE = {
    "hello_all_reduce.py": (
        LAUNCHED, (2, 1, 4), lambda n: [f"1 + ... + {n} = [{n * (n + 1) / 2:g}.", f"{n} ranks met"],
    ),
    "spawn_sum.py": (ALONE, (4,), lambda n: ["= 49999995000000 on each of 4 ranks"]),
    "objects.py": (
        LAUNCHED, (2, 4),
        lambda n: [f"{{'rank': {n - 1}, 'words': {n}, 'last': {float(n)}}}", "refused: rank 0 cannot pickle"],
    ),
    "groups.py": (
        LAUNCHED, (2, 4), lambda n: [f"even ranks: {sum(range(0, n, 2))}, odd ranks: {sum(range(1, n, 2))}"],
    ),
    "shrink_and_go_on.py": (ALONE, (4, 2), lambda n: [f"rank {n - 1} died", f"{n - 1} ranks went on"]),
    "pipeline.py": (LAUNCHED, (2, 1, 4), lambda n: [f"8 batches went through {n} stages"]),
    "shared_arrays.py": (
        LAUNCHED, (2, 4), lambda n: [f"{n} ranks summed 4000000 bytes each: {n * (n + 1) / 2:g} everywhere"],
    ),
    "overlap.py": (
        LAUNCHED, (2, 4), lambda n: [f"6 gradients of 200000 elements summed in the background over {n} ranks"],
    ),
    "persistent_plan.py": (LAUNCHED, (2, 1, 4), lambda n: ["after 200 calls of one plan", "all_gather"]),
    "variable_counts.py": (
        LAUNCHED, (2, 1, 4), lambda n: [f"rows from each rank: {list(range(1, n + 1))}", f"{10 * n} words came"],
    ),
    "actors_and_learner.py": (
        ALONE, (3, 1), lambda n: [f"{4000 * n} steps of {n} actors, the best arm is 2"],
    ),
}  # fmt: skip


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("name", "n"),
    [
        pytest.param(name, n, marks=pytest.mark.long if n != numbers[0] else ())
        for name, (_, numbers, _) in TABLE.items()
        for n in numbers
    ],
)
def test_an_example_prints_what_it_has_done(name, n):
    run, _, printed = TABLE[name]
    output = run(EXAMPLES / name, n)
    for text in printed(n):
        assert text in output


def test_ping_pong_plays_with_three_balls():
    output = run_in_launcher(2, EXAMPLES / "ping_pong.py")
    assert output.count("bytes there and back") == 3


@pytest.mark.sample(1)
@pytest.mark.parametrize("loaders", [1, 3])
def test_loaders_feed_a_trainer(loaders):
    output = run_python(EXAMPLES / "data_loader.py", str(loaders))
    assert f"{40 * loaders} batches from {loaders} loaders" in output
    assert float(re.search(r"off by (\S+)", output).group(1)) < 1e-3


def test_several_machines_prints_the_same_alone_and_under_the_launcher():
    alone = run_python(EXAMPLES / "several_machines.py")
    assert alone.startswith("mean ")
    assert run_in_launcher(4, EXAMPLES / "several_machines.py") == alone


def test_every_example_is_run_here_or_with_its_framework():
    elsewhere = {"char_gpt.py", "jax_train.py", "parallel_gpt.py", "sentence_embeddings.py", "shared_gradients.py"}
    special = {"camera.py", "data_loader.py", "joblib_backend.py", "latest_value.py", "lightning_data_loader.py",
               "ping_pong.py", "pool_over_arrays.py", "several_machines.py", "torch_data_loader.py",
               "vector_env.py"}  # fmt: skip
    assert {path.name for path in EXAMPLES.iterdir() if path.suffix == ".py"} == elsewhere | special | set(TABLE)


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


def test_a_camera_crashes_and_nobody_else_does():
    lines = run_python(EXAMPLES / "camera.py", "120").splitlines()
    assert lines[0] == "the camera ended with -9"
    crash = ["detector: the camera crashed; it waits for another one", "recorder: the camera crashed"]
    assert sorted(lines[1:3]) == crash
    assert sorted(lines[3:])[:2] == ["detector: up to frame 119", "recorder: all 120 frames"]
    assert re.fullmatch(r"viewer: late, from frame \d+ on", sorted(lines[3:])[2])


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


def test_the_backend_of_joblib_gives_the_same_as_its_own():
    pytest.importorskip("joblib")
    output = run_python(EXAMPLES / "joblib_backend.py", "20")
    assert re.search(r"loky: 20 arrays of 0.8 MB in [\d.]+ s\nshmring: 20 arrays of 0.8 MB in", output)


def test_vector_env_steps_as_many_as_it_should():
    pytest.importorskip("gymnasium")
    output = run_python(EXAMPLES / "vector_env.py", "CartPole-v1", "4", "2")
    assert re.search(r"RingVectorEnv: \d+ steps a second\nAsyncVectorEnv: \d+", output)
