"""Real runtimes with NRI and runc: what a container finds in its cgroup when its first instruction runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from koordebpf.units import MIB
from tests.cluster.bare_containerd import BareContainerd
from tests.cluster.bare_crio import BareCrio
from tests.cluster.binaries import Binaries, CannotHave, say_line
from tests.cluster.newer_containerd import newer_containerd
from tests.cluster.node import hierarchies, remove_cgroups
from tests.contract.apiserver import until
from tests.node import crio

pytestmark = [pytest.mark.kubelet, pytest.mark.slow]

BATCH = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": str(64 * MIB)}
LABELS = {"koordinator.sh/qosClass": "BE"}
SPEC = json.dumps({"containers": {"load": {"requests": BATCH, "limits": BATCH}}})
ANNOTATIONS = {"node.koordinator.sh/extended-resource-spec": SPEC}
SHOW = (
    "busybox cat /sys/fs/cgroup/cpu/cpu.shares /sys/fs/cgroup/cpu/cpu.cfs_quota_us"
    " /sys/fs/cgroup/memory/memory.limit_in_bytes; exec sleep 600"
)
LIMITED = ["512", "50000", str(64 * MIB)]
_AGENT = """
import sys, time
from koordebpf.jobs.nri.answers import ContainerAnswers
from koordebpf.kube.nri.plugin import NriPlugin
from koordebpf.kube.runtime_settings import NriSettings
from koordebpf.strategies.hooks.values import HookRules
import os
settings = NriSettings(socket=sys.argv[1], backoff_ns=50_000_000)
answers = ContainerAnswers(HookRules(hooks=frozenset({"BatchResource"})), os.eventfd(0), dry_run=False)
plugin = NriPlugin(settings, answers)
while True:
    print(plugin.state[1], flush=True)
    time.sleep(0.05)
"""


KINDS = {"containerd": (BareContainerd, newer_containerd), "crio": (BareCrio, crio.obtain)}


@pytest.fixture(scope="module", params=KINDS)
def runtime(binaries: Binaries, request: pytest.FixtureRequest) -> Iterator[BareContainerd]:
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes cgroups and namespaces")
    if not hierarchies():
        pytest.skip("not this kind of machine: it shows files of cgroup v1")
    kind, obtain = KINDS[request.param]
    try:
        programs = obtain(say_line)
    except CannotHave as error:
        pytest.skip(f"no {request.param} with NRI: {error}")
    folder = Path(tempfile.mkdtemp(prefix="ctd-", dir="/var/tmp"))
    cgroup = f"/koord-nri-{os.getpid()}"
    with kind(folder, binaries, programs, cgroup) as made:
        yield made
    shutil.rmtree(folder, ignore_errors=True)
    # Of each hierarchy of v1, and the one of v2 that is mounted beside them.
    for top in Path("/sys/fs/cgroup").glob(f"*{cgroup}"):
        remove_cgroups(top)


class Agent:
    """The plugin in a process that can be killed."""

    def __init__(self, runtime: BareContainerd) -> None:
        command = [sys.executable, "-c", _AGENT, str(runtime.nri_socket)]
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("registered with "):
                return
        raise AssertionError(f"the plugin ended\n{runtime.log()}")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        assert self.process.stdout
        self.process.stdout.close()
        self.process.wait()


def start(runtime: BareContainerd, pod: tuple[str, object], container: str) -> list[str]:
    runtime.call("StartContainer", container_id=container)
    found: list[str] = until(
        lambda: found if len(found := runtime.printed(pod, "load")) == 3 else None, lambda: runtime.log()
    )
    return found


def test_a_batch_container_is_limited_when_its_first_instruction_runs(runtime: BareContainerd) -> None:
    pod = runtime.pod("without", LABELS, ANNOTATIONS)
    assert start(runtime, pod, runtime.create(pod, "load", "/bin/sh", "-c", SHOW))[:2] == ["2", "-1"]
    agent = Agent(runtime)
    pod = runtime.pod("limited", LABELS, ANNOTATIONS)
    assert start(runtime, pod, runtime.create(pod, "load", "/bin/sh", "-c", SHOW)) == LIMITED
    agent.kill()


def test_a_plugin_that_is_killed_between_create_and_start_stops_no_container(runtime: BareContainerd) -> None:
    agent = Agent(runtime)
    pod = runtime.pod("killed", LABELS, ANNOTATIONS)
    container = runtime.create(pod, "load", "/bin/sh", "-c", SHOW)
    agent.kill()
    assert start(runtime, pod, container) == LIMITED
    pod = runtime.pod("alone", LABELS, ANNOTATIONS)
    assert start(runtime, pod, runtime.create(pod, "load", "/bin/sh", "-c", SHOW))[:2] == ["2", "-1"]
    agent = Agent(runtime)
    pod = runtime.pod("again", LABELS, ANNOTATIONS)
    assert start(runtime, pod, runtime.create(pod, "load", "/bin/sh", "-c", SHOW)) == LIMITED
    agent.kill()


def test_a_hundred_pods_at_once_all_start_limited(runtime: BareContainerd) -> None:
    agent = Agent(runtime)

    def run(number: int) -> list[str]:
        pod = runtime.pod(f"many-{number}", LABELS, ANNOTATIONS)
        return start(runtime, pod, runtime.create(pod, "load", "/bin/sh", "-c", SHOW))

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(run, range(100))) == [LIMITED] * 100
    agent.kill()
