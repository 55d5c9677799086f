"""The hogs: classes of stress-ng by name, and a batch job in Java."""

from __future__ import annotations

from pathlib import Path

from koordebpf.units import MIB
from tests.felt.load.apps import compile_java
from tests.felt.node import Resources

# What a batch pod asks for; in Kubernetes alone it is no limit.
BATCH = Resources(1000, 640 * MIB)
_STRESS: dict[str, tuple[str, str]] = {
    "anon": ("fills 2 GiB of anonymous memory, and writes it again and again", "--vm 2 --vm-bytes {mib}m --vm-keep"),
    "pagecache": ("writes and reads files of 2 GiB through the page cache", "--hdd 2 --hdd-bytes {mib}m"),
    "fork": ("four processes that fork without end", "--fork 4 --fork-max 16"),
    "io": (
        "four writers of 4 MiB past the page cache",
        "--hdd 4 --hdd-bytes 256m --hdd-write-size 4m --hdd-opts direct",
    ),
    "cpu": ("two busy processes on each of two CPUs", "--cpu 4"),
}
JVM = "jvm"
NONE = "none"
WHAT = {name: what for name, (what, _) in _STRESS.items()} | {
    JVM: "sorts in four threads with a heap of 1 GiB, as a Spark executor"
}
HOGS = tuple(WHAT)
# Those that fill the node: what an eviction for memory could do something about.
OF_MEMORY = frozenset({"anon", "pagecache"})


def command(name: str, folder: Path, memory: float = 1.0) -> list[str]:
    """Return how a hog is started; its files lie in `folder`, its memory is a share of 2 GiB.

    Raises:  KeyError: there is no such hog.
    """
    if name == JVM:
        if not (folder / "Batch.class").exists():
            compile_java("Batch", folder)
        return ["java", "-Xmx1g", "-cp", str(folder), "Batch", "4", "28"]
    _, options = _STRESS[name]
    return ["stress-ng", "--quiet", "--temp-path", str(folder), *options.format(mib=int(2048 * memory)).split()]
