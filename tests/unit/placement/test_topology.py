"""Reading machines: this one, and others made of files."""

import dataclasses
import os

import pytest

from shmring.core.base.sysfs import number_in, parse_list, size_in
from shmring.core.placement.cpus import processor_of, processor_quota, usable_processors
from shmring.core.placement.topology import Cache, Node, discover, last_level_nbytes, second_level_nbytes


@pytest.fixture
def machine(tmp_path):
    """Build a tree from {path: text}; returns the arguments of `discover`."""

    def build(files):
        for path, text in files.items():
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text + "\n")
        return {"sysfs": f"{tmp_path}/sys", "procfs": f"{tmp_path}/proc", "shm": str(tmp_path)}

    return build


def roots(arguments):
    """The roots without the directory of shared memory."""
    return {key: arguments[key] for key in ("sysfs", "procfs")}


def cache_files(cpu, index, level, kind, size, shared):
    root = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    return {
        f"{root}/level": str(level),
        f"{root}/type": kind,
        f"{root}/size": size,
        f"{root}/coherency_line_size": "64",
        f"{root}/shared_cpu_list": shared,
    }


def two_sockets():
    """Two packages of four processors, two last-level caches in each; a node for each, and one of memory alone."""
    files = {
        "proc/self/status": "Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\nMems_allowed_list:\t0-1",
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Model 9000 @ 3 GHz\n\nprocessor\t: 1\nmodel name\t: Other",
        "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size [advise] never deny force",
    }
    for cpu in range(8):
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = str(cpu // 4)
        pair = cpu // 2 * 2
        files |= cache_files(cpu, 0, 1, "Data", "32K", str(cpu))
        files |= cache_files(cpu, 1, 1, "Instruction", "64K", str(cpu))
        files |= cache_files(cpu, 2, 3, "Unified", "16384K", f"{pair}-{pair + 1}")
    for node, cpus in enumerate(("0-3", "4-7", "")):
        root = f"sys/devices/system/node/node{node}"
        files[f"{root}/cpulist"] = cpus
        files[f"{root}/distance"] = ["10 21 30", "21 10 30", "30 30 10"][node]
        files[f"{root}/meminfo"] = f"Node {node} MemTotal: {1024 * (node + 1)} kB\nNode {node} MemFree:  512 kB"
    return files


def test_two_sockets_are_read_whole(machine):
    found = discover(**machine(two_sockets()))
    assert found.model == "Model 9000 @ 3 GHz"
    assert found.architecture == os.uname().machine
    assert found.processors == tuple(range(8))
    assert found.usable == 8.0
    assert found.packages == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert found.last_level_groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert found.nodes == (
        Node(0, (0, 1, 2, 3), 1 << 20, 1 << 19, (10, 21, 30)),
        Node(1, (4, 5, 6, 7), 2 << 20, 1 << 19, (21, 10, 30)),
        Node(2, (), 3 << 20, 1 << 19, (30, 30, 10)),
    )
    assert found.caches[0] == Cache(1, 32 << 10, 64, (0,))
    assert found.caches[-1] == Cache(3, 16 << 20, 64, (6, 7))
    assert len(found.caches) == 8 + 4
    assert found.shmem_huge_pages == "advise"
    assert found.shm_nbytes > found.shm_free_nbytes > 0


def test_the_drawing_shows_it(machine):
    found = dataclasses.replace(
        discover(**machine(two_sockets())), shm_nbytes=64 << 20, shm_free_nbytes=48 << 20, architecture="x86_64"
    )
    assert found.describe().splitlines() == [
        "Model 9000 @ 3 GHz (x86_64), 8 processors allowed, 8 usable at a time",
        "package 0: 0-3",
        "└─ node 0: 0-3; 1 MiB memory, 512 KiB free",
        "   ├─ 0-1 share 16 MiB of level-3 cache",
        "   └─ 2-3 share 16 MiB of level-3 cache",
        "package 1: 4-7",
        "└─ node 1: 4-7; 2 MiB memory, 512 KiB free",
        "   ├─ 4-5 share 16 MiB of level-3 cache",
        "   └─ 6-7 share 16 MiB of level-3 cache",
        "node 2: no processors; 3 MiB memory, 512 KiB free",
        "distances     0    1    2",
        "         0   10   21   30",
        "         1   21   10   30",
        "         2   30   30   10",
        "/dev/shm: 64 MiB, 48 MiB free; huge pages: advise",
    ]


def test_a_group_is_drawn_with_its_own_cache(machine):
    files = two_sockets()
    for cpu in (6, 7):
        files |= cache_files(cpu, 2, 3, "Unified", "32768K", "6-7")
    drawing = discover(**machine(files)).describe()
    assert "4-5 share 16 MiB of level-3 cache" in drawing
    assert "6-7 share 32 MiB of level-3 cache" in drawing


@pytest.mark.parametrize(
    ("number", "maker"),
    [
        ("0x41", "Arm"),
        ("0x42", "Broadcom"),
        ("0x43", "Cavium"),
        ("0x48", "HiSilicon"),
        ("0x4e", "NVIDIA"),
        ("0x50", "Ampere"),
        ("0x51", "Qualcomm"),
        ("0x61", "Apple"),
        ("0xc0", "Ampere"),
        ("0x99", "implementer 0x99"),
    ],
)
def test_arm_processors_have_the_names_of_their_makers(machine, number, maker):
    found = discover(**machine({"proc/cpuinfo": f"processor\t: 0\nCPU implementer\t: {number}\nCPU part\t: 0xd0c"}))
    assert found.model == f"{maker} part 0xd0c"


def test_the_processor_of_a_process_is_that_of_the_process_that_is_meant(machine):
    fields = {3: "S", 22: "4711", 39: "5"}  # the 22nd is the start, the 39th the processor
    text = " ".join(fields.get(number, "0") for number in range(3, 53))
    files = {"proc/12/stat": f"12 (a name) with ) in it) {text}", "proc/13/stat": "13 (short) S 0"}
    procfs = machine(files)["procfs"]
    assert processor_of(12, procfs=procfs) == 5
    assert processor_of(12, 4711, procfs) == 5
    assert processor_of(12, 4712, procfs) == -1  # a later process with that number
    assert processor_of(13, procfs=procfs) == -1
    assert processor_of(14, procfs=procfs) == -1


def test_only_allowed_processors_count(machine):
    files = two_sockets()
    files["proc/self/status"] = "Cpus_allowed_list:\t1,4-5"
    found = discover(**machine(files))
    assert found.processors == (1, 4, 5)
    assert found.usable == 3.0
    assert found.packages == ((1,), (4, 5))
    assert found.last_level_groups == ((1,), (4, 5))
    assert [node.processors for node in found.nodes] == [(1,), (4, 5), ()]
    assert found.describe().startswith("Model 9000 @ 3 GHz")


def test_the_mask_of_the_thread_comes_before_that_of_the_process(machine):
    files = {"proc/self/status": "Cpus_allowed_list:\t0-7", "proc/thread-self/status": "Cpus_allowed_list:\t3"}
    assert discover(**machine(files)).processors == (3,)


def test_nothing_at_all_is_a_machine_too(tmp_path):
    found = discover(f"{tmp_path}/sys", f"{tmp_path}/proc", f"{tmp_path}/shm")
    everything = tuple(sorted(os.sched_getaffinity(0)))
    assert found.processors == everything
    assert found.usable == len(everything)
    assert found.packages == found.last_level_groups == (everything,)
    assert found.nodes == (Node(0, everything, 0, 0, (10,)),)
    assert found.caches == ()
    assert (found.model, found.shmem_huge_pages) == ("", "")
    assert (found.shm_nbytes, found.shm_free_nbytes) == (0, -1)
    text = found.describe()
    assert text.startswith("unknown processor")
    assert text.endswith("huge pages: unknown")


def test_nonsense_in_every_file_is_not_known_rather_than_an_error(machine):
    nonsense = dict.fromkeys(two_sockets(), "\x00 ?? -3 18446744073709551616-,,5-3 max")
    nonsense["proc/self/cgroup"] = "x\n::\n0::/../..\n1:cpu:\n7:cpu,cpuacct"
    nonsense["sys/fs/cgroup/cpu.max"] = "some none"
    nonsense["sys/fs/cgroup/cpu/cpu.cfs_quota_us"] = "much"
    arguments = machine(nonsense)
    os.mkfifo(f"{arguments['sysfs']}/devices/system/cpu/cpu0/cache/index9")  # a file where a directory should be
    found = discover(**arguments)
    assert found.processors == tuple(sorted(os.sched_getaffinity(0)))
    assert found.usable == len(found.processors)
    assert found.caches == ()
    assert all(node.processors == () and node.memory_nbytes == 0 for node in found.nodes)
    assert found.describe()


def test_a_machine_without_numa_has_one_node_with_all_memory(machine):
    files = {"proc/meminfo": "MemTotal:  2048 kB\nMemFree: 1024 kB", "proc/self/status": "Cpus_allowed_list: 0-1"}
    assert discover(**machine(files)).nodes == (Node(0, (0, 1), 2 << 20, 1 << 20, (10,)),)


def test_packages_stand_in_for_unknown_caches(machine):
    files = {path: text for path, text in two_sockets().items() if "/cache/" not in path}
    found = discover(**machine(files))
    assert found.last_level_groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert "4-7 near each other, as far as is known" in found.describe()


def test_a_processor_with_unknown_caches_among_others_is_alone(machine):
    files = {path: text for path, text in two_sockets().items() if "cpu7/cache" not in path}
    for cpu in (6, 7):
        files = {path: text for path, text in files.items() if f"cpu{cpu}/cache" not in path}
    assert discover(**machine(files)).last_level_groups == ((0, 1), (2, 3), (4, 5), (6,), (7,))


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        ("CPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c", "Arm part 0xd0c"),
        ("CPU implementer\t: 0x99\nCPU part\t: 0x001", "implementer 0x99 part 0x001"),
        ("CPU implementer\t: 0x41", "Arm part unknown"),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported", "POWER9, altivec supported"),
        ("processor : 0\nhart : 1\nuarch : sifive,u74-mc", "sifive,u74-mc"),
        ("", ""),
    ],
)
def test_models_of_other_architectures(machine, cpuinfo, model):
    assert discover(**machine({"proc/cpuinfo": cpuinfo})).model == model


# -- quotas -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "20000 100000"}, 0.2),
        # a parent's is tighter
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
                "sys/fs/cgroup/a/cpu.max": "300000 100000",
                "sys/fs/cgroup/cpu.max": "max 100000",
            },
            3.0,
        ),
        # a container that sees its host's path, but its own mount
        ({"proc/self/cgroup": "0::/docker/1234", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
        ({"proc/self/cgroup": "0::/../other", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
        # version 1, under either name of its mount
        (
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/job",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        # hybrid: the tighter of both
        (
            {
                "proc/self/cgroup": "1:cpu:/\n0::/u",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/unified/u/cpu.max": "70000 100000",
            },
            0.7,
        ),
        # a controller whose name only contains "cpu" has no quota
        ({"proc/self/cgroup": "1:cpuset:/", "sys/fs/cgroup/cpuset/cpu.cfs_quota_us": "1"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "100000 0"}, None),
    ],
)
def test_quotas_of_control_groups(machine, files, quota):
    assert processor_quota(**roots(machine(files))) == quota


def test_usable_is_the_smaller_of_mask_and_quota(machine):
    files = {"proc/self/status": "Cpus_allowed_list:\t0-3", "proc/self/cgroup": "0::/"}
    arguments = machine(files | {"sys/fs/cgroup/cpu.max": "250000 100000"})
    assert usable_processors(**roots(arguments)) == 2.5
    assert discover(**arguments).usable == 2.5
    assert "4 processors allowed, 2.5 usable" in discover(**arguments).describe()
    assert usable_processors(**roots(machine({"sys/fs/cgroup/cpu.max": "900000 100000"}))) == 4.0


# -- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", ()),
        ("0", (0,)),
        ("0-3,8,10-11", (0, 1, 2, 3, 8, 10, 11)),
        ("3,1,1-2\n", (1, 2, 3)),
        ("0-7:1/2", (0, 2, 4, 6)),
        ("0-9:2/5", (0, 1, 5, 6)),
        ("0-3:1/0", (0, 1, 2, 3)),
        ("5-3", ()),
        ("a,1-b,-2,4", (4,)),
        ("99999999999", ()),
    ],
)
def test_lists_in_the_kernels_format(text, numbers):
    assert parse_list(text) == numbers


@pytest.mark.parametrize(
    ("text", "nbytes"), [("32768K", 32 << 20), ("2M", 2 << 20), ("1G", 1 << 30), ("512", 512), ("", 0), ("-1K", 0)]
)
def test_sizes_in_the_kernels_format(text, nbytes):
    assert size_in(text) == nbytes


def test_this_machine_can_be_read():
    found = discover()
    assert set(found.processors) == os.sched_getaffinity(0)
    assert 0 < found.usable <= len(found.processors)
    assert sorted(p for group in found.packages for p in group) == sorted(found.processors)
    assert sorted(p for group in found.last_level_groups for p in group) == sorted(found.processors)
    assert sorted(p for node in found.nodes for p in node.processors) == sorted(found.processors)
    assert all(cache.nbytes > 0 for cache in found.caches)
    assert len(found.describe().splitlines()) >= 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.usable = 1.0


def test_affinity_is_seen_as_it_changes():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert discover().processors == (min(before),)
        assert usable_processors() <= 1.0
    finally:
        os.sched_setaffinity(0, before)


def test_the_second_level_cache_is_that_of_processor_0_whichever_are_allowed(machine):
    files = {"proc/self/status": "Cpus_allowed_list:\t1"}
    for cpu, size in enumerate(("1024K", "2048K")):
        files |= cache_files(cpu, 0, 1, "Data", "32K", str(cpu)) | cache_files(cpu, 1, 2, "Unified", size, str(cpu))
    assert second_level_nbytes(machine(files)["sysfs"]) == 1 << 20
    assert second_level_nbytes("/nowhere") == 0


def test_the_last_level_cache_is_the_largest_of_the_first_allowed_processor(machine):
    files = two_sockets() | {"proc/self/status": "Cpus_allowed_list:\t4-7"}
    files |= cache_files(4, 2, 3, "Unified", "8192K", "4-5")
    found = machine(files)
    assert last_level_nbytes(found["sysfs"], found["procfs"]) == 8 << 20
    assert last_level_nbytes("/nowhere", found["procfs"]) == 0


@pytest.mark.parametrize(("text", "number"), [("12", 12), ("0x1f", 31), ("-3", -3), ("", -1), ("12 MB", -1)])
def test_what_is_no_number_is_minus_one(text, number):
    assert number_in(text) == number
