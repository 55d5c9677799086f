from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from koordebpf.cli import _group
from koordebpf.cli.plan import plan
from koordebpf.decision.frames import encode_frame
from koordebpf.decision.node_plan import NodePlan
from koordebpf.errors import ConfigError
from tests.support.values.builders import frame, memory_volume, pod

FRAMES = Path(__file__).parents[2] / "scenarios" / "frames"


def _run(*arguments: str, stdin: bytes | None = None) -> str:
    result = CliRunner().invoke(plan, list(arguments), input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_text_says_which_pods_are_evicted_by_which_numbers_and_which_are_not():
    assert _run(str(FRAMES / "hog-is-evicted.json")) == (
        "evicting spark/exec-2 (priority 5000, 3.7 GiB): node at 88 % ≥ 80 %, need 2.2\n"
        "GiB to reach 75 %\n"
        "\n"
        "BEMemoryEvict\n"
        "  capacity     16.0 GiB\n"
        "  used         14.2 GiB  88 %\n"
        "  threshold    12.8 GiB  80 %\n"
        "  lower        12.0 GiB  75 %\n"
        "  need          2.2 GiB  Koordinator: 2.1 GiB\n"
        "  coming back       0 B\n"
        "  credit        3.7 GiB  1 victim\n"
        "\n"
        "rank  pod           priority     used   credit  growth/s\n"
        "*  1  spark/exec-2      5000  3.7 GiB  3.7 GiB   2.1 GiB\n"
        "   2  spark/exec-1      5000  900 MiB  900 MiB       0 B\n"
        "   3  ml/train-0        5500  5.0 GiB  5.0 GiB         -\n"
        "* evicted\n"
        "\n"
        "no candidates:\n"
        "  spark/driver-old: its phase is Succeeded: no process is left\n"
        "  ops/debug-shell: it is Kubernetes BestEffort but has no label\n"
        "    koordinator.sh/qosClass=BE\n"
        "  ml/checkpoint-0: its annotation koordinator.sh/eviction-policy does not list\n"
        "    BEMemoryEvict\n"
        "\n"
        "StallEvict: skipped (gate_off)\n"
    )


def test_koordinators_credit_stands_beside_ours_where_they_differ():
    assert "Koordinator\n" in _run(str(FRAMES / "ramdisk-survives-a-kill.json"))
    assert "Koordinator\n" not in _run(str(FRAMES / "hog-is-evicted.json"))


def test_a_skipped_feature_says_its_word():
    raw = encode_frame(frame([pod("hog", anon=900)], used=990, gate=False))
    text = _run("-", stdin=raw)
    assert text == (
        "no action: feature gate BEMemoryEvict is off\n"
        "\n"
        "BEMemoryEvict: skipped (gate_off)\n"
        "\n"
        "StallEvict: skipped (gate_off)\n"
    )


@pytest.mark.parametrize("ranking", ["0", "3", "60"])
def test_it_fits_into_80_columns(ranking):
    pods = [
        pod(
            f"a-very-long-deployment-name-{n}-" + "x" * 30 + f"-{n:03d}",
            anon=9 + n,
            shmem=8,
            growth=1e9,
            priority=1_000_000_000 + n,
            namespace="a-rather-long-namespace-name",
            volumes=[memory_volume()],
        )
        for n in range(50)
    ]
    text = _run("-", "--ranking", ranking, stdin=encode_frame(frame(pods, used=990, executor="cgroup")))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert sum(line[3:4].isdigit() and line[4:6] == "  " for line in text.splitlines()) == min(int(ranking), 50)


def test_json_is_the_plan_beside_the_frame():
    for path in FRAMES.glob("*.plan.json"):
        assert _run("--json", str(path.with_name(path.name.replace(".plan", "")))) == path.read_text()


@pytest.mark.parametrize(("name", "type_name"), [("frame", "Frame"), ("plan", "NodePlan"), ("diff", "PlanDiff")])
def test_schemas(name, type_name):
    assert json.loads(_run("--schema", name))["$ref"] == f"#/$defs/{type_name}"


HOG = str(FRAMES / "hog-is-evicted.json")
NODESLO = {
    "apiVersion": "slo.koordinator.sh/v1alpha1",
    "kind": "NodeSLO",
    "spec": {"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 95}},
}


def test_another_value_stands_beside_the_frames_own():
    text = _run(HOG, "--set", "resourceUsedThresholdWithBE.memoryEvictThresholdPercent=95")
    assert "  memoryEvictThresholdPercent  80 → 95\n" in text
    assert "- spark/exec-2 (priority 5000, 3.7 GiB)\n" in text


def test_a_word_that_means_another_policy_is_reported_beside_the_plan():
    result = CliRunner().invoke(plan, [HOG, "--set", "cpuSuppressPolicy=cfsquota"], catch_exceptions=False)
    assert "  cpuSuppressPolicy  cpuset → cfsquota\n" in result.stdout
    assert result.stderr == (
        "koordebpf: resourceUsedThresholdWithBE.cpuSuppressPolicy: 'cfsquota': must be one of cpuset, cfsQuota; "
        "cpuset is in force all the same, as in koordlet\n"
    )
    assert CliRunner().invoke(plan, [HOG], catch_exceptions=False).stderr == ""


def test_another_nodeslo_and_other_gates(tmp_path):
    path = tmp_path / "nodeslo.json"
    path.write_text(json.dumps(NODESLO))
    reported = json.loads(_run(HOG, "--diff", str(path), "--feature-gates", "MemoryEvict=true", "--json"))
    assert reported["schema"] == "koordebpf.plan-diff/v2"
    assert [each["name"] for each in reported["settings"]] == [
        "memoryEvictThresholdPercent",
        "memoryEvictLowerPercent",
        "MemoryEvict",
    ]
    assert [each["candidate"]["name"] for each in reported["lost"]] == ["exec-2"]
    assert {"schema": "koordebpf.plan/v2", **reported["before"]} == json.loads(_run(HOG, "--json"))


def test_a_setting_that_is_wrong_is_said_with_its_place(tmp_path):
    path = tmp_path / "nodeslo.json"
    NODESLO["spec"]["resourceUsedThresholdWithBE"]["memoryEvictThresholdPercent"] = "95"
    path.write_text(json.dumps(NODESLO))
    with pytest.raises(ConfigError, match=r"nodeslo\.json: spec\..*Percent: '95': must be an integer"):
        _run(HOG, "--diff", str(path))
    with pytest.raises(ConfigError, match=r"--set: spec\..*enable: 'maybe': must be true or false"):
        _run(HOG, "--set", "enable=maybe")
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"nodeslo\.json"):
        _run(HOG, "--diff", str(path))
    with pytest.raises(ConfigError, match="--feature-gates"):
        _run(HOG, "--feature-gates", "MemoryEvict=yes")


def test_bad_input_is_raised_for_the_group_to_say(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.json: No such file or directory"):
        _run(str(tmp_path / "absent.json"))
    with pytest.raises(ConfigError, match="-: "):
        _run("-", stdin=b"{}")


def test_no_frame_is_a_usage_error():
    result = CliRunner().invoke(plan, [])
    assert result.exit_code == 2
    assert "Missing argument 'FRAME.json'" in result.output


def test_help_has_an_example():
    text = _run("--help")
    assert "koordebpf plan incident.json" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_decision_costs_no_cluster_client():
    heavy = (
        "import sys; from koordebpf.cli.plan import plan; plan(sys.argv[1:], standalone_mode=False);"
        " print({'kubernetes', 'psutil', 'prometheus_client', 'rich'} & set(sys.modules), file=sys.stderr)"
    )
    for more in ([], ["--set", "memoryEvictThresholdPercent=95"]):
        done = subprocess.run([sys.executable, "-c", heavy, HOG, *more], capture_output=True, text=True, check=True)
        assert done.stderr == "set()\n"
        assert done.stdout


def test_a_misspelt_setting_is_answered_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r"did you mean memoryEvictThresholdPercent\?"):
        _run(HOG, "--set", "memoryEvictThreshholdPercent=85")


def test_fields_of_the_frame_that_nothing_reads_are_named_and_with_strict_refused(tmp_path):
    recorded = json.loads(Path(HOG).read_bytes())
    recorded["nodeSLO"]["spec"]["resourceUsedThresholdWithBE"]["memoryEvictTresholdPercent"] = 85
    path = tmp_path / "typo.json"
    path.write_text(json.dumps(recorded))
    lenient = CliRunner().invoke(plan, [str(path)], catch_exceptions=False)
    assert lenient.exit_code == 0
    assert "memoryEvictTresholdPercent: no such field, it has no effect; did you mean" in lenient.stderr
    strict = CliRunner().invoke(plan, ["--strict", str(path)], catch_exceptions=False)
    assert strict.exit_code == 2
    assert "evicting spark/exec-2" in strict.stdout


@pytest.mark.parametrize("percent", [50, "50", 700])
def test_a_node_that_the_configmap_switches_off_evicts_no_pod_whatever_else_its_entry_says(percent, tmp_path):
    recorded = json.loads(Path(HOG).read_bytes())
    del recorded["nodeSLO"]
    every = {"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}
    entry = {"nodeSelector": every, "enable": False, "memoryEvictThresholdPercent": percent}
    config = {"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": 70}, "nodeStrategies": [entry]}
    recorded["sloControllerConfig"] = {"resource-threshold-config": json.dumps(config)}
    path = tmp_path / "off.json"
    path.write_text(json.dumps(recorded))
    done = CliRunner().invoke(plan, [str(path)], catch_exceptions=False)
    assert "resourceUsedThresholdWithBE.enable is false" in done.stdout
    assert ("nodeStrategies[0].memoryEvictThresholdPercent" in done.stderr) is (percent != 50)
    assert ("the node is off" in done.stderr) is (percent != 50)


def test_a_misspelt_command_is_answered_with_the_nearest_one():
    done = CliRunner().invoke(_group, ["plna"])
    assert done.exit_code == 2
    assert "No such command 'plna'. Did you mean 'plan'?" in done.stderr


def test_a_frame_may_say_that_the_usage_of_the_node_is_not_known():
    recorded = json.loads(Path(HOG).read_bytes())
    recorded["measured"]["node"]["used_bytes"] = None
    decided = json.loads(_run("--json", "-", stdin=json.dumps(recorded).encode()))
    verdicts = {each["verdict"]["feature"]: each["verdict"] for each in decided["features"]}
    assert verdicts["BEMemoryEvict"]["skipped"] == "unknown_usage"
    assert not verdicts["BEMemoryEvict"]["fires"]
    text = _run("-", stdin=json.dumps(recorded).encode())
    assert "the node's memory usage is not known" in text
    del recorded["measured"]["node"]["used_bytes"]
    with pytest.raises(ConfigError, match="used_bytes"):
        _run("-", stdin=json.dumps(recorded).encode())


def test_a_frame_may_carry_the_state_of_suppression():
    recorded = json.loads((FRAMES / "best-effort-is-held.json").read_bytes())
    fresh = _suppressed(recorded)
    grown_ns = recorded["measured"]["now_ns"] - 1
    recorded["states"] = {"suppress": {"cpuset": "using", "cpuset_grown_ns": grown_ns, "is_ruled": True}}
    carried = _suppressed(recorded)
    assert fresh["next"]["cpuset_grown_ns"] is None
    assert carried["next"]["cpuset_grown_ns"] == grown_ns
    of_v2 = {**recorded, "schema": "koordebpf.frame/v2", "suppression": recorded.pop("states")["suppress"]}
    del of_v2["states"]
    assert _suppressed(of_v2) == carried
    recorded["states"] = {"suppress": {"quota": "sometimes"}}
    with pytest.raises(ConfigError, match=r"states\.suppress\.quota"):
        _run("-", stdin=json.dumps(recorded).encode())


def _suppressed(frame: Any) -> Any:
    plan = json.loads(_run("--json", "-", stdin=json.dumps(frame).encode()))
    return plan["strategies"]["suppress"]["explained"]["decision"]


def _with_dead_man(tmp_path: Path, action: str) -> str:
    config = tmp_path / "agent.yaml"
    config.write_text(
        f"apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\ndeadMan: {{action: {action}, after: 500ms}}\n"
    )
    return str(config)


@pytest.mark.parametrize(("action", "does"), [("count", "counts that it would kill"), ("kill", "kills")])
def test_the_dead_mans_choice_is_shown_with_its_ranking(tmp_path, action, does):
    text = _run(str(FRAMES / "hog-is-evicted.json"), "--config", _with_dead_man(tmp_path, action))
    block = text[text.index("dead man's switch") :]
    assert block.startswith(f"dead man's switch (deadMan.action: {action})\n  {does} spark/exec-2 when the agent")
    assert " ".join(block.split("\n\n")[0].split()).endswith(
        "when the agent does not run for 500 ms, tasks stall 5 ms of it for memory and more than 12.8 GiB of 16.0 GiB"
        " are in use: BEMemoryEvict would evict it first if the memory were full"
    )
    assert "*  1  spark/exec-2      5000  3.7 GiB  3.7 GiB\n" in block
    assert block.endswith("* chosen\n")
    assert max(len(line) for line in text.splitlines()) <= 80


def test_the_dead_mans_choice_as_json(tmp_path):
    frame_path = str(FRAMES / "hog-is-evicted.json")
    printed = _run("--json", frame_path, "--config", _with_dead_man(tmp_path, "kill"))
    said = json.loads(printed)["dead_man"]
    assert said["settings"] == {"action": "kill", "after_ns": 500_000_000, "stall_ns": 5_000_000}
    choice = said["choice"]
    assert (choice["reason"], choice["feature"]) == ("spark/exec-2", "BEMemoryEvict")
    assert choice["victim"]["candidate"]["name"] == choice["ranking"][0]["name"] == "exec-2"
    again = msgspec.json.decode(printed.encode(), type=NodePlan)
    assert json.loads(msgspec.json.encode(again))["dead_man"] == said
    without = _run("--json", frame_path, "--config", _with_dead_man(tmp_path, "nothing"))
    assert json.loads(without)["dead_man"] is None


def test_another_dead_mans_choice_stands_beside_the_first(tmp_path):
    frame_path, killing = str(FRAMES / "hog-is-evicted.json"), _with_dead_man(tmp_path, "kill")
    text = _run(frame_path, "--set", "deadMan.action=kill")
    assert "  deadMan.action  nothing → kill\n" in text
    assert "dead man's switch\n  before: deadMan.action is nothing\n  after:  kills spark/exec-2 when" in text
    assert "  after:  is not armed: " in _run(frame_path, "--config", killing, "--feature-gates", "BEMemoryEvict=false")
    assert "dead man's switch" not in _run(frame_path, "--config", killing, "--set", "suppress.policy=cpuIdle")


def test_a_configmap_of_the_name_that_the_configuration_gives_is_compared_with(tmp_path: Path) -> None:
    # GIVEN an installation whose settings are in ack-slo-config, as its agent's configuration says
    written = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "ack-slo-config", "namespace": "kube-system"},
        "data": {"resource-threshold-config": '{"clusterStrategy": {"enable": false}}'},
    }
    config_map, config, moment = tmp_path / "cm.json", tmp_path / "agent.yaml", str(FRAMES / "hog-is-evicted.json")
    config_map.write_text(json.dumps(written))
    slo = "slo: {configMap: {name: ack-slo-config, namespace: kube-system}}"
    config.write_text(f"apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\n{slo}\n")
    # THEN its settings are what the moment is compared with
    page = _run(moment, "--config", str(config), "--diff", str(config_map))
    assert "enable" in page and "spark/exec-2" in page
    diff = json.loads(_run(moment, "--json", "--diff", str(config), "--diff", str(config_map)))
    assert {each["name"]: (each["before"], each["after"]) for each in diff["settings"]}["enable"] == (True, False)
    # AND without that configuration the file holds none, and which ConfigMap it has is said
    with pytest.raises(ConfigError, match=r"ConfigMap kube-system/ack-slo-config.*slo-controller-config"):
        _run(moment, "--diff", str(config_map))
