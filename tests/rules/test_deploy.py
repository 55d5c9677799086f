"""The manifests of deploy/ against the code: nothing is asked for that no code needs, and nothing is missing."""

from __future__ import annotations

import ast
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from koordebpf.configuration.checked import differences
from koordebpf.configuration.file import read_config
from tests.cluster import documented
from tests.contract.rbac import RBAC, Rules
from tests.rules.modules import tree
from tests.rules.offenders import report
from tests.rules.pages import ROOT, name_of

DEPLOY = ROOT / "deploy"
KUBE = ROOT / "koordebpf/kube"
FILES = sorted(path for path in DEPLOY.rglob("*.yaml"))
# Who asks the API server, by module of koordebpf/kube.
ASKING = {
    "koordebpf-agent": ("sources/api.py", "sources/pdbs.py", "clients/evictions.py", "plugins/pods.py"),
    "koordebpf-controller": ("clients/nodeslos.py", "clients/lease.py"),
}
ASKING_OTHERS = {
    "sources/kubelet.py",  # not the API server
    "colocation/reads.py",  # koordebpf explain node: a person's own rights
    "clients/access.py",  # each authenticated client may ask what it may: system:basic-user
}
NODE_MARK = DEPLOY / "components/node-mark/rbac.yaml"
NAMESPACE_LABELS = DEPLOY / "components/namespace-labels/rbac.yaml"
POD_DELETION = DEPLOY / "components/pod-deletion/rbac.yaml"
KATALYST = DEPLOY / "components/katalyst/rbac.yaml"
TOPOLOGY = DEPLOY / "components/instead-of-koordlet/rbac-topology.yaml"
BATCH_RESOURCES = DEPLOY / "components/batch-resources/rbac.yaml"
NODE_METRIC = DEPLOY / "components/instead-of-koordlet/rbac-node-metric.yaml"
ASKING_WITH_A_COMPONENT = {
    NODE_MARK: ("clients/taints.py",),
    NAMESPACE_LABELS: ("sources/namespaces.py",),
    POD_DELETION: ("clients/deletions.py",),
    KATALYST: ("sources/cnr.py", "clients/cnr_taints.py", "clients/taints.py"),
    TOPOLOGY: ("colocation/node_topologies.py", "clients/kubelet.py"),
    BATCH_RESOURCES: ("colocation/source.py", "colocation/writes.py", "clients/lease.py"),
    NODE_METRIC: ("colocation/node_metrics.py",),
}
ACCOUNTS = {BATCH_RESOURCES: "koordebpf-controller"}  # whose component it is; the others are the agent's
# Taints of conditions are written by what writes the agent's own mark, which has one request more: of a condition.
# Of Koordinator's Lease nothing is written.
NOT_GRANTED = {
    KATALYST: {("nodes/status", "patch")},
    BATCH_RESOURCES: {("leases", "create"), ("leases", "update")},
}
# People's own rights, by group.
READERS = DEPLOY / "components/readers/rbac.yaml"
ASKED_FROM_OUTSIDE = ("remote/pods.py", "remote/exec.py")
ALL_RIGHTS = (RBAC, *ASKING_WITH_A_COMPONENT, READERS)
_METHODS = {
    "post": "create",
    "put": "update",
    "patch": "patch",
    "apply": "patch",
    "json_patch": "patch",
    "delete": "delete",
    "websocket": "create",
}


def requests_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (resource, verb) of each request in a module's text."""
    text = path.read_text()
    lists = re.search(r"import .*\bResource\b", text) is not None and "koordebpf.state.amount import" not in text
    for call in [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]:
        words = {each.arg: each.value.value for each in call.keywords if isinstance(each.value, ast.Constant)}
        match call.func:
            case ast.Name(id="Resource") if lists:
                name = call.args[0]
                assert isinstance(name, ast.Constant), f"{path.name}: a Resource whose name is no literal"
                yield str(name.value), "list"
                yield str(name.value), "watch"
            case ast.Name(id="Listing") if isinstance(call.args[2], ast.Constant):
                yield str(call.args[2].value), "list"
            case ast.Attribute(attr="get" | "parts") if {"verb", "resource"} <= words.keys():
                yield str(words["resource"]), str(words["verb"])
            case ast.Attribute(attr=method) if method in _METHODS and "resource" in words:
                yield str(words["resource"]), _METHODS[method]


def objects(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def differing(path: Path, granted: set[tuple[str, str]], asked: set[tuple[str, str]]) -> list[str]:
    """Return what is granted and never asked for, and the other way round."""
    missing = [f"{name_of(path)}: must grant {verb} of {resource}" for resource, verb in sorted(asked - granted)]
    return missing + [
        f"{name_of(path)}: {verb} of {each}: no code asks for it" for each, verb in sorted(granted - asked)
    ]


def defines(place: str, name: str) -> bool:
    """Tell whether the file defines a class, function or method of that dotted name."""
    if not (ROOT / place).is_file():
        return False
    scope: list[ast.stmt] = ast.parse((ROOT / place).read_text()).body
    for part in name.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef)
        found = next((each for each in scope if isinstance(each, kinds) and each.name == part), None)
        if found is None:
            return False
        scope = found.body
    return True


class TestRights:
    def test_they_are_those_that_the_code_asks_for(self) -> None:
        wrong = []
        for account, names in ASKING.items():
            asked = {pair for name in names for pair in requests_of(KUBE / name)}
            assert asked
            wrong += differing(RBAC, Rules(account).granted(), asked)
        report(wrong, "rights and requests must be the same")

    def test_a_component_gives_what_its_code_asks_for(self) -> None:
        wrong = []
        for path, names in ASKING_WITH_A_COMPONENT.items():
            asked = {pair for name in names for pair in requests_of(KUBE / name)}
            assert asked
            granted = Rules(ACCOUNTS.get(path, "koordebpf-agent"), path=path).granted()
            wrong += differing(path, granted, asked - NOT_GRANTED.get(path, set()))
        report(wrong, "rights and requests must be the same")

    def test_people_may_what_their_commands_ask_for(self) -> None:
        asked = {pair for name in ASKED_FROM_OUTSIDE for pair in requests_of(KUBE / name)}
        commands = {(resource, verb) for resource, verb in asked if resource == "pods/exec"}
        assert commands
        assert Rules("koordebpf:readers", path=READERS).granted() == asked - commands
        # A websocket begins with a GET, which is another verb before Kubernetes 1.35.
        assert Rules("koordebpf:operators", path=READERS).granted() == asked | {("pods/exec", "get")}

    def test_no_other_module_asks(self) -> None:
        with_rights = (*ASKING.values(), *ASKING_WITH_A_COMPONENT.values(), ASKED_FROM_OUTSIDE)
        known = {name for names in with_rights for name in names} | ASKING_OTHERS
        asking = {str(path.relative_to(KUBE)) for path in KUBE.rglob("*.py") if set(requests_of(path))}
        assert asking == known

    def test_requests_are_made_in_kube_only(self) -> None:
        elsewhere = [path for path in (ROOT / "koordebpf").rglob("*.py") if KUBE not in path.parents]
        assert [path for path in elsewhere if set(requests_of(path))] == []

    def test_lists_are_read_in_pages(self) -> None:
        listing = {str(path.relative_to(KUBE)) for path in KUBE.rglob("*.py") if 'verb="list"' in path.read_text()}
        assert listing == {"cache/list_stream.py", "plugins/pods.py"}  # the second of protobuf

    def test_no_role_has_wildcards_or_secrets(self) -> None:
        for rule in (rule for path in ALL_RIGHTS for each in objects(path) for rule in each.get("rules", ())):
            words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not words & {"*", "secrets", "escalate", "bind", "impersonate"}

    def test_every_binding_is_of_a_role_and_an_account_that_are_there(self) -> None:
        both = [each for path in ALL_RIGHTS for each in objects(path)]
        roles = {(each["kind"], each["metadata"]["name"]) for each in both if "rules" in each}
        accounts = {each["metadata"]["name"] for each in objects(DEPLOY / "base/serviceaccount.yaml")}
        for binding in (each for each in both if "roleRef" in each):
            assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in roles
            ours = [subject["name"] for subject in binding["subjects"] if subject["kind"] == "ServiceAccount"]
            assert set(ours) <= accounts
            assert ours or all(subject["kind"] == "Group" for subject in binding["subjects"])


def numbered(path: Path) -> list[tuple[int, str]]:
    return list(enumerate(path.read_text().splitlines(), 1))


def has_reason(line: str) -> bool:
    return re.search(r"# koordebpf/\S+\.py \S+", line) is not None


class TestReasons:
    """`# path Name` beside a line, more than one parted by a semicolon."""

    def test_the_code_that_is_named_is_there(self) -> None:
        missing = [
            f"{name_of(path)}:{number}: {place} {name}"
            for path in FILES
            for number, line in enumerate(path.read_text().splitlines(), 1)
            for place, name in re.findall(r"(koordebpf/\S+\.py) ([A-Za-z_.]+)", line)
            if not defines(place, name)
        ]
        report(missing, "these modules have no such name: write what needs the line now, or remove it")

    def test_every_rule_has_one(self) -> None:
        wanting = []
        for path in ALL_RIGHTS:
            lines = [each for each in numbered(path) if each[1].strip().startswith("verbs:")]
            assert len(lines) == sum(len(each.get("rules", ())) for each in objects(path))
            wanting += [f"{name_of(path)}:{number}:{line}" for number, line in lines if not has_reason(line)]
        report(wanting, "these rules must end with the code that needs them: # koordebpf/MODULE.py Name")

    def test_every_capability_and_host_path_has_one(self) -> None:
        found = []
        for path in [DEPLOY / "base/agent/daemonset.yaml", *(DEPLOY / "components").glob("*/kustomization.yaml")]:
            asks = r"\s*(- [A-Z]+(_[A-Z]+)*\b(?!:)|value: [A-Z]+(_[A-Z]+)*\b|(value|privileged|hostPID): true)"
            lines = [each for each in numbered(path) if re.match(asks, each[1])]
            lines += [after for (_, line), after in itertools.pairwise(numbered(path)) if line.strip() == "hostPath:"]
            found += [(f"{name_of(path)}:{number}", line) for number, line in lines]
        assert len(found) >= 10
        wanting = [f"{at}:{line}" for at, line in found if not has_reason(line)]
        report(wanting, "these lines must end with the code that needs them: # koordebpf/MODULE.py Name")

    def test_every_port_of_the_network_policy_has_one(self) -> None:
        path = DEPLOY / "base/networkpolicy.yaml"
        lines = [line for line in path.read_text().splitlines() if line.strip().startswith("- port:")]
        assert len(lines) == 6
        assert [line for line in lines if " # " not in line] == []

    def test_capabilities_are_those_that_the_kernel_layer_names(self) -> None:
        (daemonset,) = objects(DEPLOY / "base/agent/daemonset.yaml")
        security = daemonset["spec"]["template"]["spec"]["containers"][0]["securityContext"]
        named = {
            name
            for path in (ROOT / "koordebpf/kernel").rglob("*.py")
            for name in re.findall(r"[Gg]ive (?:the agent memory, )?CAP_(\w+)(?: and CAP_(\w+))?", path.read_text())
            for name in name
            if name
        }
        assert set(security["capabilities"]["add"]) == named
        assert security["capabilities"]["drop"] == ["ALL"]


class TestWhoseObjects:
    """deploy/README.md, "Whose objects are whose": only bootstrap/ has what other products share with us."""

    def test_shared_ones_are_in_bootstrap_alone(self) -> None:
        folder = DEPLOY / "bootstrap"
        (kustomization,) = objects(folder / "kustomization.yaml")
        names = [path.name for path in folder.iterdir() if path.name != "kustomization.yaml"]
        assert sorted(kustomization["resources"]) == sorted(names)
        found = [each for name in names for each in objects(folder / name)]
        assert {(each["kind"], each["metadata"]["name"]) for each in found} == {
            ("Namespace", "koordinator-system"),
            ("CustomResourceDefinition", "nodeslos.slo.koordinator.sh"),
            ("CustomResourceDefinition", "nodemetrics.slo.koordinator.sh"),
        }
        # No label of ours, which would stay on what is another's.
        assert all(each["metadata"].keys() == {"name"} for each in found)

    def test_all_others_are_ours_by_name_and_namespace(self) -> None:
        folders = {DEPLOY / "base", DEPLOY / "components"}
        ours = [each for path in FILES if folders & set(path.parents) for each in objects(path) if "metadata" in each]
        assert len(ours) > 30
        for each in ours:
            name, namespace = each["metadata"]["name"], each["metadata"].get("namespace", "koordebpf-system")
            assert each["kind"] != "CustomResourceDefinition"
            assert (name.partition("-")[0], namespace) == ("koordebpf", "koordebpf-system"), (each["kind"], name)

    def test_examples_have_no_namespace_and_no_definition(self) -> None:
        kinds = {each.get("kind") for path in (DEPLOY / "examples").rglob("*.yaml") for each in objects(path)}
        assert kinds & {"Namespace", "CustomResourceDefinition"} == set()

    def test_files_of_ours_are_applied_on_the_server(self) -> None:
        """Without --server-side kubectl replaces fields of other owners, and says nothing."""
        folders = [ROOT / "docs", ROOT / "deploy", ROOT / "vagrant"]
        pages = [ROOT / "README.md", *(path for folder in folders for path in folder.rglob("*.md"))]
        pages += [DEPLOY / "templates/NOTES.txt", *(ROOT / "vagrant/provision").glob("*.sh"), *FILES]
        ours = re.compile(r"kubectl apply\b[^`;|]*?\s(?:-k\s|-f deploy/)")
        applied = [line for path in pages for line in ours.findall(path.read_text())]
        assert len(applied) > 5
        assert [line for line in applied if "--server-side" not in line] == []


class TestNodeSLODefinition:
    def test_it_is_what_the_command_prints(self) -> None:
        command = [sys.executable, "-m", "koordebpf", "slo", "crd"]
        printed = subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout
        (kept,) = objects(DEPLOY / "bootstrap/nodeslo-crd.yaml")
        assert kept == json.loads(printed)

    def test_that_of_nodemetric_is_what_the_command_prints(self) -> None:
        command = [sys.executable, "-m", "koordebpf", "slo", "crd", "--node-metric"]
        printed = subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout
        (kept,) = objects(DEPLOY / "bootstrap/nodemetric-crd.yaml")
        assert kept == json.loads(printed)

    def test_it_is_structural(self) -> None:
        # https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources: a type at every node, nothing that may
        # not stand there; int-or-string and preserve-unknown-fields stand for a type.
        (definition,) = objects(DEPLOY / "bootstrap/nodeslo-crd.yaml")
        (version,) = definition["spec"]["versions"]
        seen = 0

        def walk(schema: dict[str, Any], at: str) -> None:
            nonlocal seen
            seen += 1
            assert not schema.keys() & {"$ref", "definitions", "uniqueItems", "patternProperties", "oneOf"}, at
            assert "type" in schema or schema.get("x-kubernetes-int-or-string"), at
            assert not ("properties" in schema and "additionalProperties" in schema), at
            for name, below in schema.get("properties", {}).items():
                walk(below, f"{at}.{name}")
            for name in ("items", "additionalProperties"):
                if name in schema:
                    walk(schema[name], f"{at}.{name}")

        walk(version["schema"]["openAPIV3Schema"], "")
        assert seen > 100


class TestAgentConfiguration:
    PATH = DEPLOY / "base/agent/config.yaml"

    def test_it_says_every_setting_as_the_command_prints_it(self) -> None:
        command = [sys.executable, "-m", "koordebpf", "config", "show", str(self.PATH)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        pairs = itertools.zip_longest(self.PATH.read_text().splitlines(), shown.splitlines())
        wrong = [f"{name_of(self.PATH)}:{number}: {kept}" for number, (kept, now) in enumerate(pairs, 1) if kept != now]
        report(wrong[:10], f"write into it what this prints: koordebpf config show {name_of(self.PATH)}")

    def test_it_differs_from_the_defaults_only_in_what_a_pod_needs(self) -> None:
        differing = differences(read_config(str(self.PATH), self.PATH.read_bytes()))
        assert differing.keys() == {"source.type", "report.listen", "report.audit", "report.logFormat"}


def test_the_page_of_the_low_threshold_says_where_it_must_not_be_applied() -> None:
    """Where Koordinator runs the ConfigMap is koordlet's own."""
    section = documented.section("Read what it would have done")
    assert "deploy/examples/low-threshold.yaml" in section
    assert "Where Koordinator runs, leave the first command out" in section
    assert "plan - --set memoryEvictThresholdPercent=20" in section
    assert "not where Koordinator runs" in (DEPLOY / "examples/low-threshold.yaml").read_text()


def test_the_example_of_a_configmap_is_right() -> None:
    (config_map,) = objects(DEPLOY / "examples/slo-controller-config.yaml")
    done = subprocess.run(
        [sys.executable, "-m", "koordebpf", "slo", "check", "--strict", "-"],
        input=json.dumps(config_map),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (0, "-: nothing wrong in 1 keys\n")
