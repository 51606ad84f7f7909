"""What the build knows of its sources, and what it puts into the wheel."""

import os
import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.installed import ROOT

import shmring

NEEDED = (
    "shmring/ring/spsc.pxd", "shmring/_c/layout.h", "shmring/kernel/folds.h",
    "shmring/capi/include/shmring/capi.h", "shmring/capi/__init__.pxd",
    "shmring/py.typed", "_shmring_torch.py",
)  # fmt: skip


@pytest.fixture
def build(monkeypatch):
    """What setup.py defines."""
    monkeypatch.chdir(ROOT)
    return runpy.run_path("setup.py", run_name="setup")


def test_a_changed_header_or_pxd_rebuilds_what_depends_on_it_and_nothing_else(build):
    behind = build["files_behind"]
    assert {"shmring/kernel/kernels.h", "shmring/kernel/vectors.h"} <= behind("shmring/kernel/kernels_avx2.c")
    assert "shmring/kernel/kernels.h" not in behind("shmring/ring/spsc.pyx")
    assert {"shmring/_c/atomics.h", "shmring/ring/spsc.pxd"} <= behind("shmring/channels/sender.pyx")
    assert "shmring/kernel/folds.h" in behind("shmring/engine/compiled_plan.pyx")    # by kernel/reduce.pxd
    assert "shmring/capi/include/shmring/capi.h" in behind("shmring/capi/messages.pyx")
    assert not {name for name in behind("shmring/memory/header.pyx") if "/channels/" in name}


def test_every_header_is_known_to_some_module(build, monkeypatch):
    sources = [*map(str, Path("shmring").rglob("*.pyx")), *map(str, Path("shmring/kernel").glob("*.c"))]
    known = set().union(*map(build["files_behind"], sources))
    headers = {str(path) for path in Path("shmring").rglob("*.h")}
    assert {name for name in headers if not build["is_generated"](name)} - known == set()


def test_the_wheel_has_what_others_cimport_and_none_of_the_sources(build, tmp_path, monkeypatch):
    # Everything but the extensions, which have no part in what is chosen.
    code = (
        "import runpy, setuptools; given = runpy.run_path('setup.py', run_name='setup'); "
        f"setuptools.setup(cmdclass={{'build_py': given['PythonFiles']}}, script_args=['-q', "
        f"'build', '-b', {str(tmp_path / 'build')!r}, 'egg_info', '-e', {str(tmp_path)!r}, "
        f"'bdist_wheel', '-d', {str(tmp_path / 'wheels')!r}, '-b', {str(tmp_path / 'tree')!r}])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)  # in the checkout, by the fixture
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert set(NEEDED) <= names
    assert {name for name in names if name.endswith((".pyx", ".c", ".html"))} == set()
    assert {str(path) for path in Path("shmring").rglob("*.p[xy][di]")} | {
        str(path) for path in Path("shmring").rglob("*.h") if not build["is_generated"](str(path))
    } <= names


def test_the_source_distribution_has_what_builds_tests_and_documents_it(build, tmp_path):
    command = [sys.executable, "setup.py", "-q", "egg_info", "-e", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)  # in the checkout, by the fixture
    (listed,) = tmp_path.glob("*.egg-info/SOURCES.txt")
    names = set(listed.read_text().splitlines())
    wanted = {
        str(path)
        for folder in (".ci", "bench", "docs", "examples", "shmring", "tests", "tools")
        for path in Path(folder).rglob("*")
        if path.suffix in {"", ".py", ".pyx", ".pxd", ".pyi", ".h", ".md", ".sh", ".pml"} and path.is_file()
    }
    sources = list(Path("shmring").rglob("*.pyx"))
    beside = {str(path.with_suffix(end)) for path in sources for end in (".c", ".h")}
    generated = set(filter(build["is_generated"], beside))
    assert wanted - names - generated == set()
    assert {name for name in names if name in generated or name.endswith(".so")} == set()


def test_only_a_tag_that_is_the_version_is_published(build):
    workflow = Path(".github/workflows/wheels.yml")
    if not workflow.exists():
        pytest.skip("a source distribution has no workflows")
    (command,) = re.findall(r'run: (test "\$GITHUB_REF_NAME" .*)', workflow.read_text())
    for tag, is_published in [(f"v{shmring.__version__}", True), ("v0.0.0", False), (shmring.__version__, False)]:
        variables = {**os.environ, "GITHUB_REF_NAME": tag}
        status = subprocess.run(["bash", "-c", command], env=variables, check=False).returncode
        assert (status == 0) == is_published, tag
