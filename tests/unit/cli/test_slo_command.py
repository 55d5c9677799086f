"""`koordebpf slo` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koordebpf.cli.slo import slo
from koordebpf.errors import ConfigError

EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"
CONFIGMAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: slo-controller-config, namespace: koordinator-system}
data:
  resource-threshold-config: |
    {"clusterStrategy": {"enable": true},
     "nodeStrategies": [{"name": "big", "nodeSelector": {"matchLabels": {"size": "big"}},
                         "memoryEvictThresholdPercent": 90}]}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    configmap, node = tmp_path / "cm.yaml", tmp_path / "node.json"
    configmap.write_text(CONFIGMAP)
    meta = {"name": "n1", "labels": {"size": "big"}}
    node.write_text(json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": meta}))
    return str(configmap), str(node)


def test_render_prints_the_spec_of_the_node(files: tuple[str, str]) -> None:
    configmap, node = files
    done = CliRunner().invoke(slo, ["render", "--node", node, configmap], catch_exceptions=False)
    assert json.loads(done.output)["resourceUsedThresholdWithBE"]["memoryEvictThresholdPercent"] == 90
    assert done.output.startswith('{\n  "')
    done = CliRunner().invoke(slo, ["render", "--object", "--node", node, configmap], catch_exceptions=False)
    whole = json.loads(done.output)
    assert (whole["kind"], whole["metadata"]["name"]) == ("NodeSLO", "n1")


def test_render_needs_a_node_and_a_configmap(files: tuple[str, str]) -> None:
    configmap, node = files
    for arguments in (["--node", configmap, configmap], ["--node", node, node]):
        with pytest.raises(ConfigError, match="must hold"):
            CliRunner().invoke(slo, ["render", *arguments], catch_exceptions=False)
    with pytest.raises(ConfigError, match="No such file or directory"):
        CliRunner().invoke(slo, ["render", "--node", f"{node}x", configmap], catch_exceptions=False)


def test_check_exits_with_2_where_something_is_wrong(files: tuple[str, str], tmp_path: Path) -> None:
    configmap, node = files
    good = CliRunner().invoke(slo, ["check", "--nodes", node, configmap])
    assert (good.exit_code, good.output) == (0, f"{configmap}: nothing wrong in 1 keys\n")
    bad = tmp_path / "bad.yaml"
    bad.write_text(CONFIGMAP.replace("90", "190"))
    wrong = CliRunner().invoke(slo, ["check", str(bad)])
    assert wrong.exit_code == 2
    assert "nodeStrategies[0].memoryEvictThresholdPercent: 190: must be 0…100" in wrong.output
    as_json = CliRunner().invoke(slo, ["check", "--json", str(bad)])
    assert [problem["value"] for problem in json.loads(as_json.output)] == [190]


def test_the_example_that_is_applied_as_a_whole_can_be_checked_and_rendered(files: tuple[str, str]) -> None:
    _, node = files
    example = str(EXAMPLES / "slo-controller-config.yaml")  # with its Namespace
    done = CliRunner().invoke(slo, ["check", "--strict", example], catch_exceptions=False)
    assert (done.exit_code, done.output) == (0, f"{example}: nothing wrong in 1 keys\n")
    done = CliRunner().invoke(slo, ["render", "--node", node, example], catch_exceptions=False)
    assert json.loads(done.output)["resourceUsedThresholdWithBE"]["memoryEvictThresholdPercent"] == 80


def test_a_field_that_nothing_reads_is_named_and_with_strict_refused(tmp_path: Path) -> None:
    typo = tmp_path / "typo.yaml"
    typo.write_text(CONFIGMAP.replace('"enable": true', '"enable": true, "memoryEvictTresholdPercent": 80'))
    place = "resource-threshold-config.clusterStrategy.memoryEvictTresholdPercent"
    lenient = CliRunner().invoke(slo, ["check", str(typo)])
    assert lenient.exit_code == 0
    assert f"{place}: no such field, it has no effect; did you mean memoryEvictThresholdPercent?" in lenient.stderr
    strict = CliRunner().invoke(slo, ["check", "--strict", str(typo)])
    assert strict.exit_code == 2
    assert place in strict.stdout


def test_render_warns_of_what_does_not_mean_what_it_says(files: tuple[str, str]) -> None:
    configmap, node = files
    text = CONFIGMAP.replace("90", "180").replace('"enable": true', '"enabel": true')
    Path(configmap).write_text(text)
    done = CliRunner().invoke(slo, ["render", "--node", node, configmap], catch_exceptions=False)
    assert json.loads(done.stdout)["resourceUsedThresholdWithBE"]["enable"] is False
    assert "memoryEvictThresholdPercent: 180: must be 0…100; the node is off" in done.stderr
    assert "did you mean enable?" in done.stderr
    Path(configmap).write_text(CONFIGMAP.replace("90", '"90"'))
    done = CliRunner().invoke(slo, ["render", "--node", node, configmap], catch_exceptions=False)
    assert json.loads(done.stdout)["resourceUsedThresholdWithBE"]["memoryEvictThresholdPercent"] == 70
    assert "nodeStrategies[0].memoryEvictThresholdPercent: '90'" in done.stderr


def nodeslo_named(name: str, spec: dict[str, Any]) -> str:
    head = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeSLO", "metadata": {"name": name}}
    return json.dumps({**head, "spec": spec})


def test_render_leaves_what_the_node_has_where_its_entry_is_unusable(files: tuple[str, str], tmp_path: Path) -> None:
    configmap, node = files
    Path(configmap).write_text(CONFIGMAP.replace("90", '"90"'))
    nodeslo = tmp_path / "nodeslo.json"
    spec = {"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 88}}
    nodeslo.write_text(nodeslo_named("n1", spec))
    arguments = ["render", "--node", node, "--nodeslo", str(nodeslo), configmap]
    done = CliRunner().invoke(slo, arguments, catch_exceptions=False)
    assert json.loads(done.stdout)["resourceUsedThresholdWithBE"] == spec["resourceUsedThresholdWithBE"]
    assert "memoryEvictThresholdPercent: '90': must be an integer 0…100; the node keeps what it had" in done.stderr
    Path(configmap).write_text(CONFIGMAP.replace("true", "1"))
    with pytest.raises(ConfigError, match="must be true or false"):
        CliRunner().invoke(slo, arguments, catch_exceptions=False)
    nodeslo.write_text(nodeslo_named("n2", spec))
    with pytest.raises(ConfigError, match="'n2': must hold the NodeSLO of the Node, n1"):
        CliRunner().invoke(slo, arguments, catch_exceptions=False)
    with pytest.raises(ConfigError, match="must hold a NodeSLO"):
        CliRunner().invoke(slo, ["render", "--node", node, "--nodeslo", node, configmap], catch_exceptions=False)


POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: d, uid: u}\nspec: {nodeName: , priority: %s}\n"


@pytest.mark.parametrize(("priority", "code"), [("5000", 0), ("high", 2)])
def test_another_object_of_the_file_does_not_hide_the_configmap(priority: str, code: int, tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(f"{POD % priority}---{CONFIGMAP}")
    done = CliRunner().invoke(slo, ["check", str(path)])
    assert done.exit_code == code
    assert f"{path}: nothing wrong in 1 keys\n" in done.output
    named = f"koordebpf: {path} document 1: 'web': Expected `int | null`, got `str` - at `$.spec.priority`\n"
    assert (named in done.output) is (code == 2)


def test_a_node_that_cannot_be_read_is_named(files: tuple[str, str], tmp_path: Path) -> None:
    node = tmp_path / "bad.json"
    node.write_text('{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": 3}')
    done = CliRunner().invoke(slo, ["render", "--node", str(node), files[0]])
    assert f"koordebpf: {node}: 'n1': Expected `object`, got `int` - at `$.status`" in done.output
    assert isinstance(done.exception, ConfigError)


def test_a_configmap_of_another_name(tmp_path: Path) -> None:
    path = tmp_path / "cm.yaml"
    path.write_text(CONFIGMAP.replace("slo-controller-config, namespace: koordinator-system", "ack-slo-config"))
    path.write_text(path.read_text().replace("name: ack-slo-config", "name: ack-slo-config, namespace: kube-system"))
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(slo, ["check", str(path)], catch_exceptions=False)
    assert str(caught.value).startswith(
        f"{path}: found ConfigMap kube-system/ack-slo-config, must be slo-controller-config"
    )
    done = CliRunner().invoke(slo, ["check", "--name", "ack-slo-config", str(path)])
    assert (done.exit_code, done.output) == (0, f"{path}: nothing wrong in 1 keys\n")
    in_its_own = ["check", "--name", "ack-slo-config", "--namespace", "kube-system", str(path)]
    assert CliRunner().invoke(slo, in_its_own).exit_code == 0
    with pytest.raises(ConfigError, match="must be elsewhere/ack-slo-config"):
        CliRunner().invoke(slo, [*in_its_own[:3], "--namespace", "elsewhere", str(path)], catch_exceptions=False)
    with pytest.raises(ConfigError, match=r"--name: 'a/b'"):
        CliRunner().invoke(slo, ["check", "--name", "a/b", str(path)], catch_exceptions=False)


def checked(folder: Path, name: str, data: str, *more: str) -> tuple[int, str]:
    path = folder / "cm.yaml"
    path.write_text(
        f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: kube-system}}\ndata:\n{data}"
    )
    done = CliRunner().invoke(slo, ["check", *more, str(path)])
    return done.exit_code, done.output


def test_a_vendors_configmap_of_pods_is_named_and_each_of_its_keys(tmp_path: Path) -> None:
    data = '  cpu-burst: |\n    {"enabledNamespaces": ["shop"]}\n  memory-qos: |\n    {"enabledNamespaces": ["shop"]}\n'
    code, output = checked(tmp_path, "ack-slo-pod-config", data, "--strict", "--name", "ack-slo-pod-config")
    assert code == 2
    assert [each.split(":")[1].strip() for each in output.splitlines() if "must be one of" in each] == [
        "cpu-burst", "memory-qos",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"kube-system/ack-slo-pod-config.*--name and --namespace name another"):
        path = str(tmp_path / "cm.yaml")
        CliRunner().invoke(slo, ["check", path], catch_exceptions=False)


def test_a_comment_in_the_json_is_placed(tmp_path: Path) -> None:
    classes = '"beClass": {"resctrlQOS": {"enable": true # on'
    data = f'  resource-qos-config: |\n    {{"clusterStrategy": {{\n      {classes}\n    }}}}}}}}\n'
    code, output = checked(tmp_path, "slo-controller-config", data, "--namespace", "kube-system")
    assert (code, "resource-qos-config: must be JSON: at 2:" in output) == (2, True)
