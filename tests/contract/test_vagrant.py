"""What vagrant/ promises: its README, its scenarios and its scripts say the same, and a cluster takes the pods."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from koordebpf.errors import ConfigError
from koordebpf.kube.sources.manifest import parse_manifests
from koordebpf.slo.pods.qos import koord_qos
from tests.cluster.releases import DEFAULT
from tests.node.image import FILES
from vagrant.scenarios import kubernetes, scenario
from vagrant.scenarios.scenario import FOLDER, load, names, script

ROOT = Path(__file__).parents[2]
VAGRANT = ROOT / "vagrant"
README = (VAGRANT / "README.md").read_text()
VAGRANTFILE = (VAGRANT / "Vagrantfile").read_text()
VARIANTS = re.findall(r'^  "([\w.-]+)" => \{', VAGRANTFILE, re.MULTILINE)
SCRIPTS = sorted(path for path in VAGRANT.rglob("*") if path.is_file() and path.read_bytes().startswith(b"#!"))
# What the runner says of it.
_FELT = (
    r"felt by the pod {}: ([\d.]+) (\S+) without it, ([\d.]+) \2 with it, median of {} each; better by ([\d.]+) times"
)


def test_every_story_is_there() -> None:
    assert names() == [
        "batch-allocatable-to-zero",
        "block-io",
        "cpu-burst",
        "dead-man",
        "exit-time",
        "fork-storm",
        "idle-page-cache",
        "jvm-start-burst",
        "limit-thrash",
        "memory-hog",
        "memory-qos",
        "page-cache-flood",
        "page-cache-limit",
        "request-burst",
        "slow-leak",
        "swap-death",
        "system-config",
    ]


@pytest.mark.parametrize("name", names())
class TestScenario:
    def test_its_readme_shows_each_expected_sentence(self, name: str) -> None:
        text = (FOLDER / name / "README.md").read_text()
        assert len(text.splitlines()) <= 20
        (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
        expects = load(name).expects
        unseen = [each.says for each in expects if not re.search(each.says, shown, re.MULTILINE)]
        assert unseen == []
        # And shows nothing that is not expected.
        felt = load(name).felt
        assert len(shown.splitlines()) == len(expects) + (felt is not None)
        if felt is not None:
            (before, unit, after, factor) = re.findall(_FELT.format(felt.by, felt.times), shown)[0]
            assert (unit, float(factor)) == (felt.unit, felt.factor)
            assert float(before) >= felt.factor * float(after)

    def test_its_scripts_are_there_to_run(self, name: str) -> None:
        scenario = load(name)
        paths = [
            script(name, runs)
            for runs in [*(pod.runs for pod in scenario.pods.values()), scenario.on_node or "provoke"]
        ]
        assert [path for path in paths if not os.access(path, os.X_OK)] == []
        assert FOLDER / name / "provoke" in paths

    def test_a_latency_sensitive_pod_is_never_evicted(self, name: str) -> None:
        scenario = load(name)
        sensitive = [pod for pod, each in scenario.pods.items() if each.qos == "LS"]
        assert sensitive
        for pod in sensitive:
            for sentence in (f"evicting default/{pod} (", f"evicted default/{pod} by"):
                assert any(re.search(pattern, sentence) for pattern in scenario.never)

    def test_its_pods_are_manifests(self, name: str) -> None:
        scenario = load(name).pods
        objects = list(yaml.safe_load_all(kubernetes.manifest(name, load(name))))
        priorities = {each["metadata"]["name"]: each["value"] for each in objects if each["kind"] == "PriorityClass"}
        pods = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Pod"}
        assert list(pods) == list(scenario)
        for pod_name, pod in pods.items():
            pod["metadata"]["uid"] = "an API server gives it"
            (read,) = parse_manifests({name: json.dumps(pod).encode()}).pods
            assert koord_qos(read.metadata.labels) == scenario[pod_name].qos
            is_ls = scenario[pod_name].qos == "LS"
            assert priorities[pod["spec"]["priorityClassName"]] == (9500 if is_ls else scenario[pod_name].priority)
            (container,) = pod["spec"]["containers"]
            assert container["command"] == [str(script(name, scenario[pod_name].runs))]
            assert container["volumeMounts"][0]["mountPath"] == str(ROOT)

    def test_the_readme_has_a_line_for_it(self, name: str) -> None:
        assert re.search(rf"^\| \[`{name}`\]\(scenarios/{name}/README.md\) \|", README, re.MULTILINE)


def test_the_readme_has_a_line_for_each_machine_and_each_script() -> None:
    assert VARIANTS[0] == "v2"
    assert re.findall(r"^\| `vagrant up(?: ([\w.-]+))?` \|", README, re.MULTILINE) == ["", *VARIANTS[1:]]
    scripts = [path.name for path in SCRIPTS if path.parent.name == "provision"]
    assert re.findall(r"^\| `provision/([\w.-]+)` \|", README, re.MULTILINE) == scripts


def test_the_vagrantfile_runs_every_script_and_no_other() -> None:
    ran = set(re.findall(r"[\w.-]+\.sh\b", VAGRANTFILE))
    assert ran == {path.name for path in SCRIPTS if path.parent.name == "provision"}


def test_its_kubernetes_is_that_of_the_tests() -> None:
    assert f"\nminor={DEFAULT}\n" in (VAGRANT / "provision/kubernetes.sh").read_text()
    assert f"\nKubernetes is {DEFAULT}, " in README


def test_the_kubelet_and_kubeadm_start_on_cgroup_v1() -> None:
    assert "\nfailCgroupV1: false\n" in (VAGRANT / "provision/node.sh").read_text()
    script = (VAGRANT / "provision/kubernetes.sh").read_text()
    assert "|| skipped=SystemVerification\n" in script
    assert "\n  ignorePreflightErrors: [$skipped]\n" in script


def test_the_nodes_of_the_tests_have_what_node_sh_writes() -> None:
    written = re.findall(r"^put (/\S+)", (VAGRANT / "provision/node.sh").read_text(), re.MULTILINE)
    assert len(written) > 4
    # What differs in a guest is a file beside those, never another in their place.
    assert [path for path in written if (FILES / path.lstrip("/")).exists()] == []


def test_kubeadm_gets_the_kubelet_configuration_of_the_node() -> None:
    script = (VAGRANT / "provision/kubernetes.sh").read_text()
    (config,) = re.findall(r'^put "\$config" <<EOT\n(.*?)^EOT\n', script, re.MULTILINE | re.DOTALL)
    assert re.findall(r"^kind: (\w+)", config, re.MULTILINE) == ["InitConfiguration", "ClusterConfiguration"]
    assert config.endswith("---\n$(cat /etc/kubernetes/kubelet.yaml)\n")


def test_shellcheck_reads_every_script() -> None:
    tell = ["make", "-s", "--eval", "tell: ; @echo $(SHELL_FILES)", "tell"]
    checked = subprocess.run(tell, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    sourced = {VAGRANT / "provision/files.sh", VAGRANT / "scenarios/node.sh"}
    assert {*SCRIPTS, *sourced} <= {ROOT / path for path in checked.split()}


@pytest.mark.parametrize("path", sorted((VAGRANT / "workloads").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_sample_workload_runs_a_script_of_the_checkout(path: Path) -> None:
    for each in yaml.safe_load_all(path.read_text()):
        if each["kind"] == "PriorityClass":
            continue
        pod = each["spec"]["template"]
        assert pod["metadata"]["labels"]["koordinator.sh/qosClass"] == {"web": "LS", "train": "BE"}[path.stem]
        (command,) = pod["spec"]["containers"][0]["command"]
        assert os.access(ROOT / Path(command).relative_to("/koordebpf"), os.X_OK)
        assert 'CHECKOUT = "/koordebpf"' in VAGRANTFILE


@pytest.mark.parametrize(("given", "taken"), [("512", "512"), ("65536", "6144")])
def test_no_script_takes_more_than_its_programs_do(given: str, taken: str) -> None:
    command = f'. {shlex.quote(str(FOLDER))}/node.sh; echo "$NODE_MIB"'
    done = subprocess.run(
        ["sh", "-euc", command], env={"NODE_MIB": given, "PATH": "/usr/bin:/bin"}, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == taken


def test_a_scenario_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="must be one of batch-allocatable-to-zero, "):
        load("none")
    monkeypatch.setattr(scenario, "FOLDER", tmp_path)
    (tmp_path / "bad").mkdir()
    for text in ("title: t\npods: {}\nexpects: []\nmore: 1\n", "title: t\npods: {}\nexpects: [{by: run, says: '('}]\n"):
        (tmp_path / "bad/scenario.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"bad/scenario.yaml.*must be a scenario"):
            load("bad")
