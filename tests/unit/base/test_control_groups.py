"""The memory that control groups leave to this process: trees of files of both versions."""

import pytest

from shmring.core.base.control_groups import memory_room

V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"


def v1(at, limit, used, stat="", swap=()):
    names = ["memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"]
    names += ["memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"]
    return {f"{at}/{name}": text for name, text in zip(names, (limit, used, stat, *swap), strict=False)}


def v2(at, limit, used, stat="", swap=()):
    names = ["memory.max", "memory.current", "memory.stat", "memory.swap.max", "memory.swap.current"]
    return {f"{at}/{name}": text for name, text in zip(names, (limit, used, stat, *swap), strict=False)}


@pytest.mark.parametrize(
    ("groups", "files", "room"),
    [
        ("0::/", {}, None),
        ("", v2(V2, "1000", "10"), None),
        ("0::/", v2(V2, "1000", "400"), 600),
        ("0::/", v2(V2, "max", "400"), None),
        ("0::/", v2(V2, "1000", "1400"), 0),
        ("0::/a/b", v2(f"{V2}/a/b", "max", "1") | v2(f"{V2}/a", "1000", "300") | v2(V2, "9000", "1"), 700),
        ("0::/docker/12", v2(V2, "1000", "400"), 600),
        # what the kernel drops at need is room; shared memory, which is in other lists, is not
        ("0::/", v2(V2, "1000", "900", "inactive_file 100\nactive_file 50\nshmem 700\ninactive_anon 700"), 250),
        ("4:memory:/", v1(V1, "1000", "900", "inactive_file 7\ntotal_inactive_file 100\ntotal_active_file 50"), 250),
        ("4:memory:/", v1(V1, "9223372036854771712", "400"), None),
        ("4:memory:/job", v1(f"{V1}/job", "1000", "400") | v1(V1, "9223372036854771712", "400"), 600),
        ("4:cpu,memory:/", v1("sys/fs/cgroup/cpu,memory", "1000", "400"), 600),
        ("4:memory:/\n0::/", v1(V1, "1000", "400") | v2(f"{V2}/unified", "500", "100"), 400),
        # swap, as far as the group may use it
        ("0::/", v2(V2, "1000", "400", swap=("0", "0")) | {"proc/meminfo": "SwapFree: 4 kB"}, 600),
        ("0::/", v2(V2, "1000", "400", swap=("max", "0")) | {"proc/meminfo": "SwapTotal: 9 kB\nSwapFree: 4 kB"}, 4696),
        ("0::/", v2(V2, "1000", "400", swap=("500", "100")) | {"proc/meminfo": "SwapFree: 4 kB"}, 1000),
        ("4:memory:/", v1(V1, "1000", "400", swap=("1000", "400")) | {"proc/meminfo": "SwapFree: 4 kB"}, 600),
        ("4:memory:/", v1(V1, "1000", "400", swap=("1500", "600")) | {"proc/meminfo": "SwapFree: 4 kB"}, 900),
        ("0::/", v2(V2, "much", "some"), None),
    ],
)
def test_room_of_control_groups(tmp_path, groups, files, room):
    for path, text in ({"proc/self/cgroup": groups} | files).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")
    assert memory_room(f"{tmp_path}/sys", f"{tmp_path}/proc") == room
