"""One memory cgroup's files, v1 and v2: as the kernel writes them, missing, and garbage."""

from __future__ import annotations

import pytest

from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, CgroupMemoryStat, cgroup_id, walk

V2_STAT = """anon 20480
file 8192
shmem 4096
inactive_anon 1
active_anon 2
inactive_file 3
active_file 4
unevictable 5
slab_reclaimable 7
workingset_refault_anon 0
"""
# Lines without total_ are the cgroup's own and must not be taken.
V1_STAT = """cache 100
shmem 90
inactive_anon 91
active_anon 92
inactive_file 93
active_file 94
unevictable 95
hierarchical_memory_limit 9223372036854771712
total_shmem 6
total_inactive_anon 1
total_active_anon 2
total_inactive_file 3
total_active_file 4
total_unevictable 5
"""
FILES = {
    1: {
        "memory.usage_in_bytes": "1000\n",
        "memory.limit_in_bytes": "2000\n",
        "memory.stat": V1_STAT,
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    },
    2: {
        "memory.current": "1000\n",
        "memory.max": "2000\n",
        "memory.stat": V2_STAT,
        "memory.events": "low 0\nhigh 9\nmax 8\noom 7\noom_kill 3\noom_group_kill 0\n",
    },
}
NAMES = {
    1: {"usage": "memory.usage_in_bytes", "limit": "memory.limit_in_bytes", "oom": "memory.oom_control"},
    2: {"usage": "memory.current", "limit": "memory.max", "oom": "memory.events"},
}
both = pytest.mark.parametrize("version", [1, 2])


@pytest.fixture
def memory(tree):
    opened = []

    def make(version, changed=None):
        files = {name: text for name, text in (FILES[version] | (changed or {})).items() if text is not None}
        opened.append(CgroupMemory(tree({"cg": files}) / "cg", version))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_v1_counts_the_children(memory) -> None:
    assert memory(1).read() == CgroupMemoryStat(1000, 1, 2, 3, 4, 5, 6, None)


def test_v2(memory) -> None:
    assert memory(2).read() == CgroupMemoryStat(1000, 1, 2, 3, 4, 5, 4096, 7)


@both
def test_limit_and_oom_kills(memory, version) -> None:
    assert memory(version).limit_bytes() == 2000
    assert memory(version).oom_kills() == 3


@pytest.mark.parametrize(
    ("version", "text"), [(1, "9223372036854771712\n"), (1, "9223372036854710272\n"), (2, "max\n")]
)
def test_no_limit_is_none(memory, version, text) -> None:
    assert memory(version, {NAMES[version]["limit"]: text}).limit_bytes() is None


@pytest.mark.parametrize(
    ("version", "name", "text", "swap"),
    [(1, "memory.memsw.usage_in_bytes", "1300\n", 300), (1, "memory.memsw.usage_in_bytes", "900\n", 0),
     (2, "memory.swap.current", "300\n", 300), (2, "memory.swap.current", "-1\n", 0)],
)  # fmt: skip
def test_swap_is_what_is_accounted_beside_the_memory(memory, version, name, text, swap) -> None:
    assert memory(version, {name: text}).swap_bytes(1000) == swap


@pytest.mark.parametrize("version", [1, 2])
def test_without_swap_accounting_there_is_none_and_a_cgroup_that_is_gone_is_gone(memory, version, tmp_path) -> None:
    without = memory(version)
    assert (without.swap_bytes(1000), without.swap_bytes(1000)) == (0, 0)
    with CgroupMemory(tmp_path / "none", version) as reader, pytest.raises(CgroupGone):
        reader.swap_bytes(1000)


def test_a_limit_of_zero_is_a_limit(memory) -> None:
    assert memory(2, {"memory.max": "0\n"}).limit_bytes() == 0


@both
def test_an_absent_counter_is_none_and_not_zero(memory, version) -> None:
    stat = FILES[version]["memory.stat"].replace("shmem 4096\n", "").replace("total_shmem 6\n", "")
    stat = stat.replace("slab_reclaimable 7\n", "")
    reader = memory(version, {"memory.stat": stat, NAMES[version]["oom"]: "low 0\n"})
    assert (reader.read().shmem_bytes, reader.read().slab_reclaimable_bytes) == (None, None)
    assert reader.oom_kills() is None


@both
def test_a_missing_lru_key_is_named(memory, version) -> None:
    stat = "\n".join(line for line in FILES[version]["memory.stat"].splitlines() if "inactive_file" not in line)
    with pytest.raises(KernelFileError, match=r"must have a row (total_)?inactive_file <number>"):
        memory(version, {"memory.stat": stat}).read()


@both
@pytest.mark.parametrize("text", ["", "abc\n", "-1\n", "1 2\n", "1.5\n", b"\xff\xfe\n", "max\n"])
def test_a_garbage_usage_is_named(memory, version, text) -> None:
    name = NAMES[version]["usage"]
    with pytest.raises(KernelFileError) as error:
        memory(version, {name: text}).usage_bytes()
    assert error.value.path.endswith(f"cg/{name}")


@both
@pytest.mark.parametrize("row", ["{}", "{} 1 2", "{} x", "{}  1", "{} -1", "{}\t1"])
def test_a_row_of_another_form_is_named_where_no_other_has_its_key(memory, version, row) -> None:
    good, key = FILES[version]["memory.stat"], "inactive_anon" if version == 2 else "total_inactive_anon"
    others = "".join(line for line in good.splitlines(keepends=True) if not line.startswith(f"{key} "))
    with pytest.raises(KernelFileError, match=rf"memory\.stat: .*must have a row {key} <number>"):
        memory(version, {"memory.stat": others + row.format(key) + "\n"}).read()
    # WHEN a good row comes before it or after it
    for text in (good + row.format(key) + "\n", row.format(key) + "\n" + good):
        # THEN that one counts
        assert memory(version, {"memory.stat": text}).read() == memory(version).read()


@both
def test_a_garbage_limit_is_named(memory, version) -> None:
    with pytest.raises(KernelFileError, match="'unlimited'"):
        memory(version, {NAMES[version]["limit"]: "unlimited\n"}).limit_bytes()


def test_an_endless_file_is_refused(memory) -> None:
    with pytest.raises(KernelFileError, match="must be shorter"):
        memory(2, {"memory.stat": "x 1\n" * 10_000}).read()


@both
def test_a_cgroup_without_the_controller_is_not_gone(memory, version) -> None:
    with pytest.raises(SupportError, match=r"cgroup\.subtree_control"):
        memory(version, {NAMES[version]["usage"]: None}).read()


@both
def test_a_cgroup_that_is_not_there_is_gone(tmp_path, version) -> None:
    with CgroupMemory(tmp_path / "none", version) as reader, pytest.raises(CgroupGone):
        reader.read()
    with pytest.raises(CgroupGone):
        cgroup_id(tmp_path / "none")
    with pytest.raises(CgroupGone):
        list(walk(tmp_path / "none"))


def test_close_gives_every_fd_back_and_the_reader_opens_again(memory) -> None:
    reader = memory(2)
    reader.read()
    reader.close()
    assert reader.read().usage_bytes == 1000


def test_a_walk_gives_parents_first_and_no_files(tree) -> None:
    root = tree({"a/x": {}, "a/memory.stat": "", "b": {}, "cgroup.procs": ""})
    walked = list(walk(root))
    assert {path for _, _, path in walked} == {"", "a", "a/x", "b"}
    ids = {path: own_id for own_id, _, path in walked}
    for at, (own_id, parent_id, path) in enumerate(walked):
        assert own_id == (root / path).stat().st_ino
        assert parent_id == (ids[path.rpartition("/")[0]] if path else 0)
        assert not path or parent_id in {each for each, _, _ in walked[:at]}


def test_a_walk_below_the_mount_keeps_paths_from_the_mount(tree) -> None:
    root = tree({"node/kubepods": {}})
    (top, pods) = walk(root / "node", root)
    assert top == (cgroup_id(root / "node"), cgroup_id(root), "node")
    assert pods[1:] == (top[0], "node/kubepods")


def test_what_vanishes_during_a_walk_is_left_out(tree) -> None:
    root = tree({"a/x": {}, "b/y": {}})
    walked = walk(root)
    assert next(walked)[2] == ""
    (root / "a/x").rmdir()
    (root / "a").rmdir()
    assert {path for _, _, path in walked} == {"b", "b/y"}
