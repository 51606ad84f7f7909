"""What the build knows of its sources, and what it puts into the wheel."""

import email
import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from support import installed
from support.installed import ROOT

import shmring

NEEDED = (
    "shmring/core/ring/spsc.pxd",
    "shmring/core/c/layout.h",
    "shmring/core/kernel/folds.h",
    "shmring/capi/include/shmring/capi.h",
    "shmring/capi/__init__.pxd",
    "shmring/py.typed",
)


@pytest.fixture
def build(monkeypatch):
    """What setup.py defines."""
    monkeypatch.chdir(ROOT)
    return runpy.run_path("setup.py", run_name="setup")


def test_the_flags_of_the_user_come_after_all_others(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CFLAGS", "-O3 -DTEXT='a b'")
    given = runpy.run_path("setup.py", run_name="setup")
    rooms = ("_cython.c", "jax/_mpi.pyx", "communicator.pyx", "core/kernel/reduce.pyx")
    for one in [given["extension"](f"shmring/{name}") for name in rooms]:
        assert one.extra_compile_args[-2:] == ["-O3", "-DTEXT=a b"]
        assert not {"-O3", "-DTEXT=a b"} & set(one.extra_compile_args[:-2])


def test_extensions_that_are_older_than_their_sources_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(installed, "ROOT", tmp_path)
    shutil.copy(ROOT / "setup.py", tmp_path)
    room = tmp_path / "shmring" / "room"
    room.mkdir(parents=True)
    for folder in (room.parent, room):
        (folder / "__init__.py").touch()
    for name in ("one", "two", "three"):
        (room / f"{name}.pyx").write_text("from shmring.room.one cimport f\n" if name == "two" else "")
        os.utime(room / f"{name}.pyx", (1000, 1000))
    (room / "one.pxd").touch()
    cases = (("one", 900, {"three", "two"}), ("two", 900, {"three"}), ("three", 1500, {"one", "two"}))
    for name, changed_at, stale in cases:
        built = room / f"{name}{EXTENSION_SUFFIXES[0]}"
        built.touch()
        os.utime(built, (1200, 1200))
        os.utime(room / "one.pxd", (changed_at, changed_at))
        assert {Path(path).stem for path in installed.stale_extensions()} == stale
    (room / "three.pyx").unlink()
    assert f"shmring/room/three{EXTENSION_SUFFIXES[0]}" in installed.stale_extensions()


@pytest.fixture
def wheel(build, tmp_path):
    """The wheel, without the extensions, which have no part in what is chosen."""
    code = (
        "import setuptools; setuptools.setup(script_args=['-q', "
        f"'build', '-b', {str(tmp_path / 'build')!r}, 'egg_info', '-e', {str(tmp_path)!r}, "
        f"'bdist_wheel', '-d', {str(tmp_path / 'wheels')!r}, '-b', {str(tmp_path / 'tree')!r}])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)  # in the checkout, by the fixture
    (path,) = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        yield wheel


def test_the_wheel_has_what_others_cimport_and_none_of_the_sources(build, wheel):
    names = set(wheel.namelist())
    assert set(NEEDED) <= names
    assert {name for name in names if name.endswith((".pyx", ".c", ".html"))} == set()
    for ending in ("pxd", "pyi", "h"):
        assert {str(path) for path in Path("shmring").rglob(f"*.{ending}")} <= names


def test_what_an_index_shows_holds_there(wheel):
    (folder,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    metadata = email.message_from_bytes(wheel.read(f"{folder}/METADATA"))
    text = metadata.get_payload()
    assert text.startswith("# shmring\n")
    assert re.findall(r"\]\((?!https:)", text) == []  # links to files that an index does not have
    assert metadata["Author"] == "shmring maintainers"
    # The code's licence, and that of the demo's data, whose attribution is beside it.
    assert metadata["License-Expression"] == "MIT AND CC-BY-4.0"
    licences = {name.removeprefix(f"{folder}/licenses/") for name in wheel.namelist() if "/licenses/" in name}
    assert licences == set(metadata.get_all("License-File")) == {"LICENSE", "shmring/cli/digits.txt"}


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
    assert wanted <= names
    assert {name for name in names if name.startswith("build/") or name.endswith(".so")} == set()


def test_only_a_tag_that_is_the_version_is_published(build):
    workflow = Path(".github/workflows/wheels.yml")
    if not workflow.exists():
        pytest.skip("a source distribution has no workflows")
    (command,) = re.findall(r'run: (test "\$GITHUB_REF_NAME" .*)', workflow.read_text())
    for tag, is_published in [(f"v{shmring.__version__}", True), ("v0.0.0", False), (shmring.__version__, False)]:
        variables = {**os.environ, "GITHUB_REF_NAME": tag}
        status = subprocess.run(["bash", "-c", command], env=variables, check=False).returncode
        assert (status == 0) == is_published, tag


def test_workflows_name_actions_by_digest():
    workflows = list((ROOT / ".github" / "workflows").glob("*.yml"))
    if not workflows:
        pytest.skip("a source distribution has no workflows")
    used = [name for path in workflows for name in re.findall(r"uses: (\S+)", path.read_text())]
    assert len(used) > len(workflows)
    assert [name for name in used if not re.fullmatch(r"\./\S+|[\w./-]+@[0-9a-f]{40}", name)] == []


def test_the_program_of_the_thread_sanitizer_fits_the_modules_that_it_uses(build, tmp_path):
    program = ROOT / "tests" / "sanitizers" / "threads.pyx"
    command = [sys.executable, "-m", "cython", "-3", "-I", str(ROOT), str(program), "-o", str(tmp_path / "threads.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
