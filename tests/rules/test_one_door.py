"""Files of the kernel are written by one module, its tables and objects of Kubernetes read by one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.rules.modules import MODULES, PACKAGE, tree
from tests.rules.offenders import report

THE_DOOR = "kernel/io/text_file.py"
# The kernel's files that others write keep no value that would have to be restored.
_KERNEL = {
    "kernel/proc/psi.py": "a trigger, which ends with its descriptor",
    "strategies/resctrl/groups.py": "tasks of resctrl groups; a group is recorded first, and removed with all of them",
    "kernel/cgroup/reclaim.py": "memory.reclaim, an order that leaves no value; each one is audited as a write",
    "kernel/cgroup/freezer.py": "a kill's freeze and lifted limits, in the write-ahead log before; a successor ends it",
    "kernel/host/cpu_support.py": "opened and closed again, to tell whether it could be written",
    "kernel/host/protection.py": "oom_score_adj of the agent itself",
    "kernel/proc/tasks.py": "oom_score_adj of processes, which end; what each container had is on disk before",
}
_OWN = {
    "act/task_record.py",
    "strategies/katalyst/sink.py",  # notices, in directories of pods
    "act/writer/journal.py",
    "kernel/io/regular_file.py",  # for those that are named here
    "store/budget.py",
    "store/cgroup_root.py",
    "jobs/prediction/keeper.py",
    "store/output_file.py",  # what a person names by an option
    "store/pod_list.py",
    "store/recorder/ring.py",
    "store/recorder/shard_file.py",
    "jobs/usage_series/snapshot.py",
    "store/shadow.py",
    "store/node_lock.py",
    "kube/runtime_proxy.py",  # by which koord-runtime-proxy finds it
    "strategies/cpu_suppress/run.py",
    "store/wal.py",
}
_DEMO = {"demo/node.py", "demo/workers.py"}  # a node of its own, which is removed with it

_FLAGS = {"O_WRONLY", "O_RDWR"}
_METHODS = {"write_text", "write_bytes"}
_CALLS = {"KeptFile", "open_part", "replace_file"}


def opens_to_write(path: Path) -> bool:
    return any(
        (isinstance(node, ast.Attribute) and node.attr in _FLAGS | _METHODS)
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and (
                node.func.id in _CALLS
                or (
                    node.func.id == "open"
                    and any(
                        isinstance(each, ast.Constant) and set("wax+") & set(str(each.value)) for each in node.args[1:]
                    )
                )
            )
        )
        for node in ast.walk(tree(path))
    )


def found(pattern: str) -> list[str]:
    """Return where modules have what a pattern finds, as module:line."""
    return [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in MODULES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]


def test_modules_that_open_files_to_write_are_known() -> None:
    writing = {str(path.relative_to(PACKAGE)) for path in MODULES if opens_to_write(path)}
    known = {THE_DOOR, *_KERNEL, *_OWN, *_DEMO}
    report(
        (f"koordebpf/{name}" for name in sorted(writing - known)),
        "these open files to write: values of the kernel go through act/writer; add any other to this module, with why",
    )
    report((f"koordebpf/{name}" for name in sorted(known - writing)), "these write no file any more: remove them here")


def test_only_the_writer_has_the_key() -> None:
    using = found(r"write_kernel_file")
    allowed = ("act/writer/places.py", THE_DOOR)
    assert {each.partition(":")[0] for each in using} >= set(allowed)
    report(
        (each for each in using if not each.startswith(allowed)), "the kernel's files are written by act/writer alone"
    )


def test_only_one_module_reads_tables_of_mounts() -> None:
    """Fields of tenants are told apart there: tests/properties/test_mount_tables.py."""
    reads = r"/proc/(self/)?mounts|mountinfo\W.*\.(read_text|read_bytes|open)\(|mountinfo\.(read|open)|\" - \""
    wrong = [each for each in found(reads) if not each.startswith("kernel/proc/mounts.py:")]
    report(wrong, "tables of mounts are read by kernel/proc/mounts.py: call read_mounts")


# By types of their own: answers of plugins, and the specs of slo/, field by field.
_NOT_OF_KUBERNETES = ("kube/plugins/", "slo/convert.py")


def test_only_one_module_decodes_objects_of_kubernetes() -> None:
    """There a null is an absent field: tests/properties/test_null_is_absent.py."""
    decodes = r"msgspec\.json\.Decoder|msgspec\.json\.decode\(.*\btype=|msgspec\.convert\("
    wrong = [
        each
        for each in found(decodes)
        if each.startswith(("kube/", "slo/", "controller/")) and not each.startswith(_NOT_OF_KUBERNETES)
    ]
    report(wrong, "types of Kubernetes are decoded by koordebpf/decoding.py: call decoder or convert")


# A line ends at other bytes for str.splitlines, and bytes of tenants are no UTF-8.
_TEXT = {
    "kernel/bcc/process.py": "what a child of ours says of its end, for people",
    "kernel/bcc/child.py": "names in an object that we have compiled",
    "kernel/bpf/libbpf.py": "names in an object that we have compiled, and of libbpf's own messages",
}


def test_only_one_module_decodes_tables_of_the_kernel() -> None:
    """No row of a tenant's changes what is read: tests/properties/test_kernel_tables.py."""
    decoding = [
        each for each in found(r"\.splitlines\(|\.decode\(\)|\.read_text\(") if each.startswith(("kernel/", "collect/"))
    ]
    known = {"kernel/io/table.py", *_TEXT}
    wrong = [f"koordebpf/{each}" for each in decoding if each.partition(":")[0] not in known]
    report(wrong, "files of the kernel are bytes: split by rows() and decoded by field() of kernel/io/table.py")
    assert {each.partition(":")[0] for each in decoding} == _TEXT.keys()
