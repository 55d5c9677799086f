"""What vagrant/ promises: its README, its scenarios and its scripts say the same, and a cluster takes the pods."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import yaml

from koordebpf.kube.sources.manifest import parse_manifests
from koordebpf.slo.pods.qos import koord_qos
from tests.cluster.releases import DEFAULT
from tests.node.image import FILES
from tests.rules.offenders import report
from tests.rules.pages import ROOT, name_of
from vagrant.scenarios import kubernetes
from vagrant.scenarios.scenario import FOLDER, load, names, script

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


def test_a_readme_shows_each_expected_sentence_and_no_other() -> None:
    wrong = []
    for name in names():
        path = FOLDER / name / "README.md"
        text, expects, felt = path.read_text(), load(name).expects, load(name).felt
        assert len(text.splitlines()) <= 20, name_of(path)
        (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
        unseen = [each.says for each in expects if not re.search(each.says, shown, re.MULTILINE)]
        wrong += [f"{name_of(path)}: does not show: {says}" for says in unseen]
        if len(shown.splitlines()) != len(expects) + (felt is not None):
            wrong.append(f"{name_of(path)}: shows a sentence that scenario.yaml does not expect")
        if felt is not None:
            (before, unit, after, factor) = re.findall(_FELT.format(felt.by, felt.times), shown)[0]
            if (unit, float(factor)) != (felt.unit, felt.factor) or float(before) < felt.factor * float(after):
                wrong.append(f"{name_of(path)}: must show {felt.factor} times better, in {felt.unit}")
    report(wrong, "the README of a scenario shows what its scenario.yaml expects")


def test_scripts_of_scenarios_are_there_to_run() -> None:
    wrong = []
    for name in names():
        scenario = load(name)
        runs = [*(pod.runs for pod in scenario.pods.values()), scenario.on_node or "provoke"]
        paths = [script(name, each) for each in runs]
        assert FOLDER / name / "provoke" in paths
        wrong += [name_of(path) for path in paths if not os.access(path, os.X_OK)]
    report(wrong, "these must be there, with the mode 755")


def test_a_latency_sensitive_pod_is_never_evicted() -> None:
    wrong = []
    for name in names():
        scenario = load(name)
        sensitive = [pod for pod, each in scenario.pods.items() if each.qos == "LS"]
        assert sensitive, name
        wrong += [
            f"{name_of(FOLDER)}/{name}/scenario.yaml: {sentence}"
            for pod in sensitive
            for sentence in (f"evicting default/{pod} (", f"evicted default/{pod} by")
            if not any(re.search(pattern, sentence) for pattern in scenario.never)
        ]
    report(wrong, "`never` of these scenarios must have these sentences")


def test_pods_of_scenarios_are_manifests() -> None:
    for name in names():
        scenario = load(name).pods
        objects = list(yaml.safe_load_all(kubernetes.manifest(name, load(name))))
        priorities = {each["metadata"]["name"]: each["value"] for each in objects if each["kind"] == "PriorityClass"}
        pods = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Pod"}
        assert list(pods) == list(scenario), name
        for pod_name, pod in pods.items():
            at = f"vagrant/scenarios/{name}/scenario.yaml: {pod_name}"
            pod["metadata"]["uid"] = "an API server gives it"
            (read,) = parse_manifests({name: json.dumps(pod).encode()}).pods
            assert koord_qos(read.metadata.labels) == scenario[pod_name].qos, at
            is_ls = scenario[pod_name].qos == "LS"
            priority = 9500 if is_ls else scenario[pod_name].priority
            assert priorities[pod["spec"]["priorityClassName"]] == priority, at
            (container,) = pod["spec"]["containers"]
            assert container["command"] == [str(script(name, scenario[pod_name].runs))], at
            assert container["volumeMounts"][0]["mountPath"] == str(ROOT), at


def test_the_readme_has_a_line_for_each_scenario() -> None:
    linked = set(re.findall(r"^\| \[`([\w-]+)`\]\(scenarios/\1/README.md\) \|", README, re.MULTILINE))
    report((f"vagrant/README.md: {name}" for name in names() if name not in linked), "its table must have these")


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


def test_a_sample_workload_runs_a_script_of_the_checkout() -> None:
    paths = sorted((VAGRANT / "workloads").glob("*.yaml"))
    found = [(path, each) for path in paths for each in yaml.safe_load_all(path.read_text())]
    assert len(found) > 1
    for path, each in found:
        if each["kind"] == "PriorityClass":
            continue
        pod = each["spec"]["template"]
        assert pod["metadata"]["labels"]["koordinator.sh/qosClass"] == {"web": "LS", "train": "BE"}[path.stem]
        (command,) = pod["spec"]["containers"][0]["command"]
        assert os.access(ROOT / Path(command).relative_to("/koordebpf"), os.X_OK)
        assert 'CHECKOUT = "/koordebpf"' in VAGRANTFILE
