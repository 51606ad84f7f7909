"""`shmring.vllm` fits the interface of the vLLM that was recorded by tools/vllm_interface.py; neither is imported."""

import ast
import json
import re
from pathlib import Path

import pytest
from support.installed import ROOT

tool = pytest.importorskip("vllm_interface", reason="tools/ is not part of what is installed")

RECORD = json.loads(tool.RECORD.read_text())
CPU = "vllm.distributed.device_communicators.cpu_communicator.CpuCommunicator"
QUEUE = "vllm.distributed.device_communicators.shm_broadcast.MessageQueue"
PLATFORM = "vllm.platforms.cpu.CpuPlatform"
CLASSES = {"ShmringCommunicator": CPU, "ShmringQueue": QUEUE, "ShmringCpuPlatform": PLATFORM}


def our_class(name):
    return next(node for tree in tool.our_sources() for node in ast.walk(tree) if getattr(node, "name", "") == name)


def test_everything_that_is_imported_is_recorded():
    names = {f"{module}.{name}" for tree in tool.our_sources() for module, name in tool.imports(tree)}
    assert names - {"vllm.__version__"} <= set(RECORD)
    assert len(names) > 5


@pytest.mark.parametrize("name", CLASSES)
def test_methods_that_replace_vllms_take_the_same_parameters(name):
    theirs = RECORD[CLASSES[name]]["methods"]
    ours = {node.name: tool.parameters(node) for node in our_class(name).body if isinstance(node, ast.FunctionDef)}
    replaced = set(ours) & set(theirs)
    assert replaced
    for method in replaced:
        named = [one for one in ours[method] if not one.startswith("*")]
        is_open = len(named) < len(ours[method])  # *args takes the rest
        assert named == theirs[method][: len(named)], method
        assert is_open or len(named) == len(theirs[method]), method


def test_attributes_of_vllms_communicator_exist():
    node = our_class("ShmringCommunicator")
    own = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    own |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)}
    read = {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self"
    }
    theirs = RECORD[CPU]
    assert read - own <= set(theirs["attributes"]) | set(theirs["methods"])
    assert read - own


def test_the_queue_knows_the_methods_of_the_one_that_it_replaces():
    text = (tool.OURS / "queue.py").read_text()
    known = ast.literal_eval(re.search(r"^_KNOWN = (\{.*?^\})", text, re.MULTILINE | re.DOTALL).group(1))
    theirs = RECORD[QUEUE]["methods"]
    for method, wanted in known.items():
        assert tuple(one.partition("=")[0] for one in theirs[method][: len(wanted)]) == wanted
    assert {"local_reader_ranks", "buffer_handle"} <= set(RECORD[f"{QUEUE.rpartition('.')[0]}.Handle"]["attributes"])


def test_entry_points_are_of_the_groups_in_which_vllm_looks():
    text = Path(ROOT, "pyproject.toml").read_text()
    for constant in ("DEFAULT_PLUGINS_GROUP", "PLATFORM_PLUGINS_GROUP"):
        group = ast.literal_eval(RECORD[f"vllm.plugins.{constant}"])
        assert f'[project.entry-points."{group}"]' in text
