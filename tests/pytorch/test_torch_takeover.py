"""Programs that ask for gloo, and get groups of shmring: each run as it is, with the package's entry point."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from support.programs import run_program, run_python, run_shmring

import shmring

PROGRAM = Path(__file__).parents[1] / "support" / "torch_takeover.py"


@pytest.fixture
def installed(tmp_path):
    """An environment in which torch finds the entry point, as in one where the package is installed."""
    about = tmp_path / "takeover_of_tests-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: takeover-of-tests\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[torch.backends]\nshmring = shmring.torch:register\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])  # and the shmring that is tested
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "SHMRING_TORCH_TAKEOVER": "gloo"}


def test_torch_can_be_imported_beside_a_source_tree_that_is_not_compiled(installed, tmp_path):
    shutil.copytree(Path(shmring.__file__).parent, tmp_path / "shmring", ignore=shutil.ignore_patterns("*.so"))
    del installed["SHMRING_TORCH_TAKEOVER"]
    code = (
        "import sys, torch.distributed as dist; dist.Backend.SHMRING\n"
        # An editable install would give what is missing here.
        "sys.meta_path[:] = [one for one in sys.meta_path if '__editable__' not in str(one)]\n"
        "for module in ('shmring.multiprocessing', 'shmring.torch.processgroup'):\n"
        "    try: __import__(module)\n"
        "    except ImportError as error: print(error)\n"
        "from shmring import Communicator"
    )
    done = run_program(sys.executable, "-c", code, env=installed, status=1)
    assert (done.stdout + done.stderr).count(f"shmring is not compiled here ({tmp_path}/shmring/core)") == 3


def run(env, *case, ranks=2):
    """What the program prints."""
    return run_shmring("run", "-n", str(ranks), PROGRAM, *case, env=env).stdout


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo", ""])
def test_a_program_that_asks_for_gloo_gets_shmring(installed, backend):
    assert run(installed, "groups", backend, ranks=3).count("is done") == 3


@pytest.mark.parametrize("ranks", [1, 2])
def test_tensors_of_other_devices_go_to_their_backend(installed, ranks):
    assert run(installed, "devices", ranks=ranks).count("is done") == ranks


def test_the_debug_level_detail_changes_nothing(installed):
    assert run({**installed, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "groups", "gloo").count("is done") == 2


def test_ranks_on_several_machines_get_gloo(installed, tmp_path):
    launcher = tmp_path / "nodes.py"
    launcher.write_text(
        "import os, runpy, sys\n"
        "os.environ['SHMRING_NODE'] = os.environ['RANK']\n"
        f"sys.argv[:] = [{str(PROGRAM)!r}, 'several']\n"
        f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
    )
    assert run_shmring("run", "-n", "2", launcher, env=installed).stdout.count("is done") == 2


def test_ranks_that_disagree_all_get_an_error(installed):
    # Without the entry point, so that a rank can be left without the setting: `disagree` registers by itself.
    output = run({**installed, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "disagree", ranks=3)
    for rank in (0, 2):
        assert f"{rank}: SHMRING_TORCH_TAKEOVER=gloo is not set for rank 1: set it for all ranks or for none" in output
    assert "1: gloo: " in output


def test_a_late_rank_is_called_late(installed):
    assert run(installed, "late").count("is done") == 2


def test_another_value_is_an_error_as_torch_is_imported(installed):
    check = (
        "try:\n    import torch\nexcept RuntimeError as error:\n    cause = error.__cause__\n"
        "else:\n    raise SystemExit('no error')\n"
        "assert isinstance(cause, ValueError) and 'nccl' in str(cause), cause\n"
    )
    run_python("-c", check, env={**installed, "SHMRING_TORCH_TAKEOVER": "nccl"})


def test_without_the_setting_torch_is_left_alone(installed):
    check = (
        "import sys, torch, torch.distributed.distributed_c10d as c10d;"
        "assert 'SHMRING' in dir(c10d.Backend);"
        "assert not hasattr(c10d._new_process_group_helper, '__wrapped__');"
        "print(*sorted(name for name in sys.modules if name.partition('.')[0] == 'shmring'))"
    )
    env = {name: value for name, value in installed.items() if name != "SHMRING_TORCH_TAKEOVER"}
    assert run_python("-c", check, env=env) == "shmring shmring.errors shmring.torch shmring.version\n"
