"""A node in a guest and its control plane: restored from a saved state, with its pods running."""

from __future__ import annotations

import contextlib
import datetime
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from urllib3.exceptions import HTTPError

from tests.cluster.api import Object, Refused
from tests.cluster.control_plane import ControlPlane, Kept
from tests.cluster.objects import AGENT, NAMESPACE, nodeslo
from tests.cluster.processes import wait_for
from tests.node.agent import GuestAgent
from tests.node.guest import Guest, GuestFailed, Machine
from tests.node.image import Image
from tests.node.joining import guest_kubeconfig
from tests.node.network import HOST_ADDRESS
from tests.node.served import served
from tests.node.state import API_PORT, CONTROLLERS, PLANE, Saved, power_on
from tests.vm.kernels import Say

_RENEWED_S = 30
SLOWER = 4  # an emulated node than a real one, where the machine does other work, too
_IMPORT_S = 900  # an emulated CPU unpacks 120 MB in three minutes
_JOURNAL_LINES = 150
_EVENTS = 30
_AGENT_LINES = 60
_CGROUPS = "/sys/fs/cgroup"


class GuestNode:
    """A node in a guest and its control plane. `close()` ends both; a saved state keeps as it is.

    Shape:   `cluster` is the control plane, `guest` runs commands in it, `name` is its Node's.
    Made by  `restored()`, `booted()`.
    """

    def __init__(self, name: str, kubernetes: Path, cluster: ControlPlane, guest: Guest) -> None:
        self.name = name
        self.kubernetes = kubernetes
        self.cluster, self.guest = cluster, guest
        self.api = cluster.api
        self.object: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}

    @classmethod
    def restored(cls, saved: Saved, folder: Path) -> GuestNode:
        """Restore a saved node; return it when it has renewed its lease, after about 8 s."""
        shutil.copytree(saved.folder / PLANE, folder / PLANE)
        started = datetime.datetime.now(datetime.UTC)
        with contextlib.ExitStack() as until_renewed:
            cluster = ControlPlane(saved.kubernetes, CONTROLLERS, kept=Kept(folder / PLANE, API_PORT))
            until_renewed.callback(cluster.close)
            guest = Guest.restore(saved.image.kernel, saved.image.initrd, saved.folder, folder)
            until_renewed.callback(guest.close)
            node = cls(saved.image.suite.name, saved.kubernetes, cluster, guest)
            wait_for(lambda: node.lease_renewed() > started, "the node's lease is not renewed", (), SLOWER * _RENEWED_S)
            until_renewed.pop_all()
        return node

    @classmethod
    @contextlib.contextmanager
    def booted(cls, image: Image, kubernetes: Path, machine: Machine, say: Say) -> Iterator[GuestNode]:
        """Boot a node of another kind; yield it when its pods run, after about a minute and a half."""
        folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="koordebpf-node-"))
        try:
            image.unpack(folder)
            node = cls(image.suite.name, kubernetes, *power_on(image, kubernetes, folder, machine, say))
            try:
                yield node
            finally:
                node.close()
        finally:
            shutil.rmtree(folder)

    def lease_renewed(self) -> datetime.datetime:
        """Return when the kubelet renewed the node's lease last."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{self.name}"
        return datetime.datetime.fromisoformat(self.api.call("GET", path)["spec"]["renewTime"])

    def node(self) -> Object:
        """Return the Node as the API server has it."""
        found = self.api.get(self.object)
        assert found is not None, self.name
        return found

    def until(self, condition: Callable[[], object], what: str, timeout_s: float = 60) -> None:
        """Wait until a condition is true, which takes a real node `timeout_s` at most.

        Raises:  TimeoutError: it is not in time, and what it was.
        """
        wait_for(condition, what, (), SLOWER * timeout_s)

    def condition(self, kind: str) -> Object:
        """Return one of the Node's conditions."""
        (found,) = (each for each in self.node()["status"]["conditions"] if each["type"] == kind)
        return dict(found)

    def pod(self, name: str, namespace: str = "default") -> Object | None:
        """Return a pod as the API server has it; None: there is none."""
        return self.api.get({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}})

    def add(self, pod: Object, timeout_s: float = 60) -> Object:
        """Create a pod; return it once it runs."""
        self.api.create(pod)
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        wait_for(lambda: is_running(self.pod(name, namespace)), f"{name} does not run", (), SLOWER * timeout_s)
        made = self.pod(name, namespace)
        assert made is not None
        return made

    def cgroup(self, pod: Object) -> str:
        """Return the pod's cgroup in the guest, as the cgroup driver names it."""
        kind = {"BestEffort": "besteffort", "Burstable": "burstable"}.get(pod["status"]["qosClass"])
        uid = pod["metadata"]["uid"]
        if self.guest.machine.cgroup_driver != "systemd":
            return "/".join(filter(None, (_CGROUPS, "kubepods", kind, f"pod{uid}")))
        above = f"kubepods-{kind}" if kind else "kubepods"
        name = f"{above}-pod{uid.replace('-', '_')}.slice"
        return "/".join(filter(None, (_CGROUPS, "kubepods.slice", f"{above}.slice" if kind else "", name)))

    def container_cgroup(self, pod: Object) -> str:
        """Return the cgroup in the guest of the pod's one container."""
        (container,) = pod["status"]["containerStatuses"]
        container_id = container["containerID"].rpartition("/")[2]
        is_systemd = self.guest.machine.cgroup_driver == "systemd"
        prefix = {"containerd": "cri-containerd", "crio": "crio"}[self.guest.machine.runtime]
        return f"{self.cgroup(pod)}/{f'{prefix}-{container_id}.scope' if is_systemd else container_id}"

    def first_pid(self, pod: Object) -> int:
        """Return the pid in the guest of the container's first process, also where it is in a cgroup of its own."""
        files = f"$(find {self.container_cgroup(pod)} -name cgroup.procs)"
        return int(self.guest.check(f"cat {files} | sort -n | head -n 1"))

    def used_percent(self) -> int:
        """Return how much of the guest's memory is in use."""
        lines = self.guest.check("cat /proc/meminfo").splitlines()
        kib = {key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in lines)}
        return 100 - 100 * kib["MemAvailable"] // kib["MemTotal"]

    def prepare_hog(self, name: str, mib: int, rate_mib_s: int = 0) -> None:
        """Say what an idle hog of the saved state is to allocate once it is woken."""
        arguments = f"--mib {mib} --rate-mib-s {rate_mib_s} --hold 600"
        self.guest.check(f"echo '{arguments}' >/proc/{self._pid_of(name)}/root/tmp/hog")

    def wake_hog(self, name: str) -> None:
        """Let a hog that was prepared allocate."""
        self.guest.check(f"kill -USR1 {self._pid_of(name)}")

    def _pid_of(self, name: str) -> int:
        pod = self.pod(name)
        assert pod is not None, name
        return self.first_pid(pod)

    def set_thresholds(self, **thresholds: object) -> None:
        """Create this node's NodeSLO, or change it."""
        wanted = nodeslo(self.name, **thresholds)
        if self.api.get(wanted) is None:
            self.api.create(wanted)
        else:
            self.api.patch(wanted, {"spec": wanted["spec"]})

    def agent(self, *arguments: str) -> GuestAgent:
        """Start the checkout's agent in the guest as a service, under its ServiceAccount; return it when it watches."""
        account = json.loads(self.cluster.service_account(NAMESPACE, AGENT).read_text())
        token = account["users"][0]["user"]["token"]
        config = guest_kubeconfig(self.cluster, {"token": token})
        return GuestAgent(self.guest, self.name, config, arguments)

    def import_image(self, archive: Path) -> None:
        """Give the guest's runtime an archive of an image, by HTTP on this network's loopback."""
        with served(archive.parent) as port:
            here = "/var/tmp/image.tar"
            self.guest.check(f"busybox wget -q -O {here} http://{HOST_ADDRESS}:{port}/{archive.name}", _IMPORT_S)
            self.guest.check(f"node-import {here} && rm {here}", _IMPORT_S)

    def tag_image(self, name: str, other: str) -> None:
        """Give an image of the guest's runtime another name."""
        self.guest.check(f"ctr -n k8s.io images tag {name} {other}")

    def diagnostics(self) -> str:
        """Return pods, Events and the ends of the guest's journal and agents' logs, to find out why a test failed."""
        try:
            pods = [f"{one['metadata']['name']}: {json.dumps(one['status'])}" for one in self.api.items("v1", "Pod")]
            events = sorted(
                f"{one['lastTimestamp']} {one['involvedObject']['name']} {one['reason']}: {one['message']}"
                for one in self.api.items("v1", "Event")
            )
            journal = self.guest.run(f"journalctl --no-pager -n {_JOURNAL_LINES} | cut -c 1-500").text
            agents = self.guest.run(
                f"tail -n {_AGENT_LINES} /var/log/pods/{NAMESPACE}_*/*/*.log 2>/dev/null | cut -c 1-500"
            ).text
        except (GuestFailed, OSError, Refused, HTTPError) as error:
            return f"it does not answer: {error}"
        return "\n".join([*pods, "", *events[-_EVENTS:], "", journal, agents])

    def close(self) -> None:
        """End the guest and the control plane."""
        self.guest.close()
        self.cluster.close()


def is_running(pod: Object | None) -> bool:
    """Tell whether every container of a pod runs."""
    containers = pod["status"].get("containerStatuses", ()) if pod else ()
    return bool(containers) and all("running" in each["state"] for each in containers)


def was_never_restarted(pod: Object) -> bool:
    """Tell whether the kubelet has started no container of a pod again."""
    return all(each["restartCount"] == 0 for each in pod["status"]["containerStatuses"])
