"""What kustomize builds of the overlays, alone and with each component."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import koordebpf.kube.http.transport
from koordebpf.decision.strategies import HOOK_GATES
from koordebpf.kube.clients.cri import SOCKETS
from koordebpf.kube.clients.kubelet import SOCKET
from koordebpf.kube.config_map import CONFIG_MAP
from koordebpf.kube.runtime_settings import NriSettings
from koordebpf.report.http.listener import probes_beside
from koordebpf.strategies.katalyst.decide import GATE
from koordebpf.strategies.katalyst.settings import KatalystSettings
from tests.contract.rbac import Rules
from tests.deploy.rendered import DEPLOY, built, by_name, offered, overlay_with, pod_specs

LINUX = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}  # what the image is for
SHARED = {
    ("Namespace", CONFIG_MAP.namespace),
    ("CustomResourceDefinition", "nodeslos.slo.koordinator.sh"),
    ("CustomResourceDefinition", "nodemetrics.slo.koordinator.sh"),
}


class TestKustomize:
    @pytest.mark.parametrize("overlay", ["observe", "enforce"])
    def test_everything_is_there(self, overlay: str) -> None:
        applied = built(DEPLOY / "overlays" / overlay)
        assert {
            ("Namespace", "koordebpf-system"),
            ("DaemonSet", "koordebpf-agent"),
            ("Deployment", "koordebpf-controller"),
        } <= set(by_name(applied))
        images = {container["image"] for spec in pod_specs(applied).values() for container in spec["containers"]}
        assert images == {"koordebpf:0.1.0"}

    @pytest.mark.parametrize("overlay", ["observe", "enforce"])
    def test_the_patch_of_the_page_chooses_nodes_of_another_architecture(self, overlay: str, tmp_path: Path) -> None:
        (patch,) = re.findall(r"```yaml\n(  - target:.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
        path = overlay_with(tmp_path, overlay, []) / "kustomization.yaml"
        text = path.read_text()
        assert text.count("\npatches:\n") == 1
        path.write_text(text.replace("\npatches:\n", f"\npatches:\n{patch}"))
        specs = pod_specs(built(path.parent))
        assert len(specs) == (3 if overlay == "enforce" else 2)
        assert {spec["nodeSelector"]["kubernetes.io/arch"] for spec in specs.values()} == {"arm64"}

    @pytest.mark.parametrize("overlay", ["observe", "enforce"])
    def test_the_configuration_that_is_mounted_is_there(self, overlay: str) -> None:
        applied = built(DEPLOY / "overlays" / overlay)
        for each in applied:
            if each["kind"] == "DaemonSet":
                volumes = each["spec"]["template"]["spec"]["volumes"]
                mounted = next(volume["configMap"]["name"] for volume in volumes if "configMap" in volume)
                assert ("ConfigMap", mounted) in set(by_name(applied))

    @pytest.mark.parametrize("overlay", ["observe", "enforce"])
    def test_nothing_is_mounted_twice(self, overlay: str) -> None:
        for pod in pod_specs(built(DEPLOY / "overlays" / overlay)).values():
            mounts = [mount["mountPath"] for mount in pod["containers"][0].get("volumeMounts", [])]
            names = [volume["name"] for volume in pod.get("volumes", [])]
            assert sorted(mounts) == sorted(set(mounts))
            assert sorted(names) == sorted(set(names))

    def test_observers_could_not_evict(self) -> None:
        applied = built(DEPLOY / "overlays/observe")
        role = next(e for e in applied if (e["kind"], e["metadata"]["name"]) == ("ClusterRole", "koordebpf-agent"))
        granted = {
            (resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]
        }
        assert granted == Rules("koordebpf-agent").granted() - {("pods/eviction", "create")}
        agents = [e["spec"]["template"]["spec"]["containers"][0] for e in applied if e["kind"] == "DaemonSet"]
        assert ["--enforce" in agent["args"] for agent in agents] == [False]

    def test_no_pod_may_more_than_it_says_why(self) -> None:
        for name, pod in pod_specs(built(DEPLOY / "overlays/enforce")).items():
            (container,) = pod["containers"]
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            assert security["capabilities"]["drop"] == ["ALL"]
            # SELinux's type for containers may neither use bpf(2) nor write to cgroups.
            assert security.get("seLinuxOptions") == ({"type": "spc_t"} if "agent" in name else None)
            assert "appArmorProfile" not in security
            assert LINUX.items() <= pod["nodeSelector"].items()
            assert not pod.keys() & {"hostPID", "hostNetwork", "hostIPC"}, name
            # Who is to be quick is not throttled; who leaks is ended.
            assert container["resources"]["limits"].keys() == {"memory"}
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            # A kubelet on a node in trouble is slow.
            for probe in ("livenessProbe", "readinessProbe"):
                assert container[probe]["timeoutSeconds"] >= 5

    def test_only_the_cgroups_and_the_agents_own_folders_may_be_written_to(self) -> None:
        for name, pod in pod_specs(built(DEPLOY / "overlays/enforce")).items():
            mounts = pod["containers"][0].get("volumeMounts", [])
            writable = {mount["mountPath"] for mount in mounts if not mount.get("readOnly")}
            own = {"/run/koordebpf", "/var/lib/koordebpf"}
            assert writable == ({"/sys/fs/cgroup", *own} if "agent" in name else set())

    @pytest.mark.parametrize("components", [[], ["cri", "host-processes"], ["privileged"]])
    def test_of_kubelets_files_only_its_socket_is_seen(self, components: list[str], tmp_path: Path) -> None:
        for name, pod in pod_specs(built(overlay_with(tmp_path, "enforce", components))).items():
            hosts = {volume["hostPath"]["path"] for volume in pod.get("volumes", []) if "hostPath" in volume}
            of_kubelet = {path for path in hosts if "/var/lib/kubelet".startswith(path) or "kubelet" in path}
            assert of_kubelet == ({str(SOCKET.parent)} if "agent" in name else set())

    def test_agents_are_on_every_node_and_updated_few_at_a_time(self) -> None:
        for one in built(DEPLOY / "overlays/enforce"):
            if one["kind"] == "DaemonSet":
                assert one["spec"]["updateStrategy"] == {"rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 0}}
                pod = one["spec"]["template"]["spec"]
                assert pod["tolerations"] == [{"operator": "Exists"}]
                assert pod["priorityClassName"] == "system-node-critical"

    def test_every_node_has_one_agent(self) -> None:
        applied = built(DEPLOY / "overlays/enforce")
        specs = {e["metadata"]["name"]: e["spec"] for e in applied if e["kind"] == "DaemonSet"}
        watching, acting = specs["koordebpf-agent"], specs["koordebpf-agent-enforce"]
        affinity = watching["template"]["spec"]["affinity"]["nodeAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [{"key": "koordebpf.io/mode", "operator": "NotIn", "values": ["enforce"]}]
        everywhere = watching["template"]["spec"]["nodeSelector"]
        assert acting["template"]["spec"]["nodeSelector"] == everywhere | {"koordebpf.io/mode": "enforce"}
        assert "affinity" not in acting["template"]["spec"]
        assert watching["selector"] != acting["selector"]
        for spec, enforces in ((watching, False), (acting, True)):
            args = spec["template"]["spec"]["containers"][0]["args"]
            assert args[2:] == ["--enforce", "--stand-by"] * enforces
            assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()

    @pytest.mark.parametrize("component", ["node-mark", "namespace-labels", "pod-deletion"])
    def test_it_is_a_right_of_its_own(self, component: str, tmp_path: Path) -> None:
        whole = set(by_name(built(DEPLOY / "overlays/enforce")))
        more = set(by_name(built(overlay_with(tmp_path, "enforce", [component]))))
        assert more - whole == {(kind, f"koordebpf-{component}") for kind in ("ClusterRole", "ClusterRoleBinding")}
        assert whole <= more

    def test_katalysts_plugins_find_the_agent_and_pods_their_notices(self, tmp_path: Path) -> None:
        usual = pod_specs(built(DEPLOY / "overlays/enforce"))
        whole = by_name(built(overlay_with(tmp_path, "enforce", ["katalyst"])))
        rights = {(kind, "koordebpf-katalyst") for kind in ("ClusterRole", "ClusterRoleBinding")}
        assert whole.keys() - by_name(built(DEPLOY / "overlays/enforce")).keys() == rights
        specs = pod_specs(list(whole.values()))
        defaults = KatalystSettings()
        for name in ("koordebpf-agent", "koordebpf-agent-enforce"):
            assert specs[name]["containers"][0]["args"].pop() == f"--feature-gates={GATE}=true"
            for path, is_read_only in ((defaults.sockets, True), (defaults.notices, False)):
                volume = specs[name]["volumes"].pop()
                mount = specs[name]["containers"][0]["volumeMounts"].pop()
                assert volume == {"name": mount["name"], "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
                assert (mount["mountPath"], mount.get("readOnly", False)) == (path, is_read_only)
        assert specs == usual

    def test_agents_that_kill_see_the_processes_of_the_host_and_may_signal_them(self, tmp_path: Path) -> None:
        usual = pod_specs(built(DEPLOY / "overlays/enforce"))
        killing = pod_specs(built(overlay_with(tmp_path, "enforce", ["host-processes"])))
        for name in ("koordebpf-agent", "koordebpf-agent-enforce"):
            assert "hostPID" not in usual[name]
            assert killing[name].pop("hostPID") is True
            added = killing[name]["containers"][0]["securityContext"]["capabilities"]["add"]
            assert added.pop() == "KILL"
            profile = killing[name]["containers"][0]["securityContext"].pop("appArmorProfile")
            assert profile == {"type": "Unconfined"}
        assert killing == usual

    @pytest.mark.parametrize(
        ("component", "gate", "capability"),
        [("oom-score-adj", "OOMScoreAdj", "DAC_OVERRIDE"), ("core-sched", "CoreSched", "SYS_PTRACE")],
    )
    def test_a_hook_of_other_users_processes_has_the_capability_that_no_other_agent_has(
        self, component: str, gate: str, capability: str, tmp_path: Path
    ) -> None:
        assert gate in HOOK_GATES
        usual = pod_specs(built(DEPLOY / "overlays/enforce"))
        specs = pod_specs(built(overlay_with(tmp_path, "enforce", [component])))
        for name in ("koordebpf-agent", "koordebpf-agent-enforce"):
            assert capability not in usual[name]["containers"][0]["securityContext"]["capabilities"]["add"]
            assert specs[name].pop("hostPID") is True
            assert specs[name]["containers"][0]["securityContext"]["capabilities"]["add"].pop() == capability
            assert specs[name]["containers"][0]["args"].pop() == f"--feature-gates={gate}=true"
        assert specs == usual

    @pytest.mark.parametrize(("component", "folder"), [("cri", "/run/containerd"), ("cri-o", "/run/crio")])
    def test_a_runtime_that_stops_containers_is_found_by_the_agent(
        self, component: str, folder: str, tmp_path: Path
    ) -> None:
        assert Path(folder) in {socket.parent for socket in SOCKETS}
        usual = pod_specs(built(DEPLOY / "overlays/enforce"))
        specs = pod_specs(built(overlay_with(tmp_path, "enforce", [component])))
        for name in ("koordebpf-agent", "koordebpf-agent-enforce"):
            volume = specs[name]["volumes"].pop()
            mount = specs[name]["containers"][0]["volumeMounts"].pop()
            assert volume == {"name": mount["name"], "hostPath": {"path": folder, "type": "Directory"}}
            assert (mount["mountPath"], mount["readOnly"]) == (folder, True)
            assert mount["mountPropagation"] == "HostToContainer"
        assert specs == usual

    def test_a_runtimes_nri_socket_is_where_the_agent_looks_for_it(self, tmp_path: Path) -> None:
        folder = str(Path(NriSettings().socket).parent)
        usual = pod_specs(built(DEPLOY / "overlays/enforce"))
        specs = pod_specs(built(overlay_with(tmp_path, "enforce", ["nri"])))
        for name in ("koordebpf-agent", "koordebpf-agent-enforce"):
            volume = specs[name]["volumes"].pop()
            mount = specs[name]["containers"][0]["volumeMounts"].pop()
            assert volume == {"name": mount["name"], "hostPath": {"path": folder, "type": "DirectoryOrCreate"}}
            assert (mount["mountPath"], mount["readOnly"]) == (folder, True)
        assert specs == usual

    def test_the_namespace_of_the_thresholds_is_made_before_anyone_else_can(self) -> None:
        assert set(by_name(built(DEPLOY / "bootstrap"))) == SHARED
        assert ("Namespace", CONFIG_MAP.namespace) in SHARED

    @pytest.mark.parametrize("overlay", ["observe", "enforce"])
    def test_no_overlay_has_what_others_share(self, overlay: str, tmp_path: Path) -> None:
        for name, components in {"alone": [], "all": offered(overlay)}.items():
            applied = set(by_name(built(overlay_with(tmp_path / name, overlay, components))))
            assert {(kind, each) for kind, each in applied if not each.startswith("koordebpf")} == set()
            assert not {kind for kind, _ in applied} & {"CustomResourceDefinition"}

    def test_acting_on_the_own_node_only_is_policies_and_nothing_else(self, tmp_path: Path) -> None:
        whole = by_name(built(DEPLOY / "overlays/enforce"))
        bounded = by_name(built(overlay_with(tmp_path, "enforce", ["own-node-only"])))
        assert {one: bounded[one] for one in whole} == whole
        added = bounded.keys() - whole.keys()
        policies = {name for kind, name in added if kind == "ValidatingAdmissionPolicy"}
        assert {(kind, name) for kind, name in added if not kind.startswith("ValidatingAdmissionPolicy")} == set()
        for name in policies:
            assert bounded["ValidatingAdmissionPolicy", name]["spec"]["failurePolicy"] == "Fail"
            binding = bounded["ValidatingAdmissionPolicyBinding", name]["spec"]
            assert (binding["policyName"], binding["validationActions"]) == (name, ["Deny"])

    @pytest.mark.parametrize("components", [["privileged"], ["host-processes", "privileged"]])
    def test_privileged_stands_for_every_capability(self, components: list[str], tmp_path: Path) -> None:
        specs = pod_specs(built(overlay_with(tmp_path, "enforce", components)))
        for name in ("koordebpf-agent", "koordebpf-agent-enforce"):
            security = specs[name]["containers"][0]["securityContext"]
            # The API server refuses allowPrivilegeEscalation: false beside it.
            assert security == {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True}
        assert "privileged" not in specs["koordebpf-controller"]["containers"][0]["securityContext"]

    @pytest.mark.parametrize("overlay", ["observe", "enforce"])
    def test_what_koordinator_brings_is_left_out(self, overlay: str, tmp_path: Path) -> None:
        whole = set(by_name(built(DEPLOY / "overlays" / overlay)))
        beside = set(by_name(built(overlay_with(tmp_path, overlay, ["beside-koordinator"]))))
        assert whole - beside == {
            *((kind, "koordebpf-controller") for kind in ("Deployment", "ServiceAccount", "Role", "RoleBinding")),
            *((kind, "koordebpf-controller") for kind in ("ClusterRole", "ClusterRoleBinding")),
        }

    def test_options_are_those_of_the_commands(self) -> None:
        for pod in pod_specs(built(DEPLOY / "overlays/enforce")).values():
            (container,) = pod["containers"]
            command, *options = container["args"]
            help_text = subprocess.run(
                [sys.executable, "-m", "koordebpf", command, "--help"], capture_output=True, text=True, check=True
            ).stdout
            assert [o for o in options if o.partition("=")[0] not in help_text] == []


class TestNetworkPolicy:
    def test_it_lets_in_to_the_ports_that_are_listened_on_and_to_nothing_else(self) -> None:
        applied = built(DEPLOY / "overlays/enforce")
        (policy,) = [one["spec"] for one in applied if one["kind"] == "NetworkPolicy"]
        containers = [container for pod in pod_specs(applied).values() for container in pod["containers"]]
        ports = [{port["name"]: port["containerPort"] for port in container["ports"]} for container in containers]
        (ingress,) = policy["ingress"]
        assert {port["port"] for port in ingress["ports"]} == {each["http"] for each in ports}
        # The kubelet's probes are let in by no policy, and need none: they come from the pod's own node.
        for container, each in zip(containers, ports, strict=True):
            assert probes_beside(f"0.0.0.0:{each['http']}") == f"0.0.0.0:{each['probes']}"
            probes = {probe["httpGet"]["port"] for name, probe in container.items() if name.endswith("Probe")}
            assert probes == {"probes"}
        assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]

    def test_it_is_about_every_pod_of_ours(self) -> None:
        applied = built(DEPLOY / "overlays/enforce")
        (policy,) = [one for one in applied if one["kind"] == "NetworkPolicy"]
        for one in applied:
            if one["kind"] in ("DaemonSet", "Deployment"):
                assert one["metadata"]["namespace"] == policy["metadata"]["namespace"]
                labels = one["spec"]["template"]["metadata"]["labels"]
                assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()

    def test_no_name_server_is_needed(self) -> None:
        # Within a pod the API server's address is an environment variable: port 53 is not needed.
        assert '"KUBERNETES_SERVICE_HOST"' in inspect.getsource(koordebpf.kube.http.transport)
