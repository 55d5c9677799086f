"""What a person reads who gave something that is no good: one line that says where, what, and what is near."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from koordebpf.cli import main

ROOT = Path(__file__).parents[3]
HELD = str(ROOT / "tests/scenarios/frames/best-effort-is-held.json")


class Typed:
    """Runs a command line in this process."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = self._capfd.readouterr()
        return int(ended.value.code or 0), out, err


@pytest.fixture
def typed(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Typed:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    # It would stay in force for the tests after this one.
    monkeypatch.setattr("koordebpf.report.log_formats.set_up_logging", lambda **_: None)
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    return Typed(capfd)


@pytest.mark.parametrize("command", [["slo", "check"], ["config", "check"], ["run", "--config"], ["run", "--pods"]])
@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        (b"a: 1\nb:\n  - [x\nc: 2\n", "4:2", "did not find expected ',' or ']'"),
        (b"a: 1\n\xc3\xa9: \x01\n", "2:4", "control characters are not allowed"),
        (b"a: 1\nb: \xff\n", "2:4", "invalid leading UTF-8 octet"),
        (b'{"a": 1,\n "b": x}', "2:7", "invalid character"),
        (b'{"a": 1,\n', "2:1", "it ends too early"),
    ],
)
def test_a_file_that_is_neither_yaml_nor_json_is_one_line_with_its_place(
    typed: Typed, command: list[str], text: bytes, place: str, what: str
) -> None:
    Path("t.yaml").write_bytes(text)
    code, out, err = typed(*command, "t.yaml")
    (line,) = (out + err).splitlines()
    assert code == 2
    assert f"t.yaml:{place}: must be whole " in line
    assert line.endswith(f": {what}")


def test_a_frame_that_is_cut_short_has_its_place(typed: Typed) -> None:
    Path("f.json").write_text('{"pods": [\n')
    assert typed("plan", "f.json") == (2, "", "koordebpf: f.json:2:1: must be JSON: it ends too early\n")


def test_a_binary_file_is_not_echoed(typed: Typed) -> None:
    Path("b.json").write_bytes(b"\x00\x9b2J" + os.urandom(300))
    code, out, err = typed("plan", "b.json")
    assert (code, out) == (2, "")
    assert err == "koordebpf: b.json:1:1: must be JSON: invalid character\n"


@pytest.mark.parametrize("command", [["plan"], ["explain"], ["slo", "check"], ["config", "check"], ["replay"]])
def test_a_file_that_is_missing_is_said_in_the_systems_words(typed: Typed, command: list[str]) -> None:
    assert typed(*command, "none.json") == (2, "", "koordebpf: none.json: No such file or directory\n")


def test_a_field_of_the_configuration_file_has_its_place(typed: Typed) -> None:
    Path("c.yaml").write_text(
        "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\n"
        "eviction:\n  coolTme: 5s\n  ladder: 5\nsourc: {}\n"
    )
    code, out, _ = typed("config", "check", "c.yaml")
    assert code == 2
    assert out.splitlines() == [
        "c.yaml:4:3: eviction.coolTme: '5s': no such field; did you mean coolTime?",
        "c.yaml:5:3: eviction.ladder: 5: must be an object",
        "c.yaml:6:1: sourc: {}: no such field; did you mean source?",
    ]


def test_two_settings_that_contradict_each_other_have_a_place(typed: Typed) -> None:
    Path("c.yaml").write_text(
        "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\n\nsampling: {floor: 2s, cap: 1s}\n"
    )
    _, out, _ = typed("config", "check", "c.yaml")
    assert out == "c.yaml:4:23: sampling.cap: '1 s': must be sampling.floor (2 s) or more\n"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["plan", HELD, "--set", "memoryEvictThreshholdPercent=85"], "did you mean memoryEvictThresholdPercent?"),
        (["plan", HELD, "--set", "eviction.lader=x"], "did you mean ladder?"),
        (["plan", HELD, "--feature-gates", "MemoryEvct=true"], "no such gate; did you mean MemoryEvict?"),
        (["run", "--feature-gates", "BEMemoryEvit=true"], "no such gate; did you mean BEMemoryEvict?"),
        (["plna"], "Did you mean 'plan'?"),
        (["plan", "--jsn"], "--json"),
    ],
)
def test_a_name_that_is_none_has_the_nearest_one_beside_it(typed: Typed, arguments: list[str], hint: str) -> None:
    code, out, err = typed(*arguments)
    assert (code, out) == (2, "")
    assert hint in err


def test_a_name_that_is_like_no_other_has_all_of_them(typed: Typed) -> None:
    _, _, err = typed("plan", HELD, "--set", "eviction.qqq=1")
    assert "no such field; known are coolTime, " in err


@pytest.mark.parametrize(("strict", "code"), [([], 0), (["--strict"], 2)])
def test_a_field_of_a_nodeslo_that_nothing_reads_is_named(typed: Typed, strict: list[str], code: int) -> None:
    config = json.dumps({"clusterStrategy": {"enable": True, "memoryEvictTresholdPercent": 70}})
    Path("cm.json").write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "slo-controller-config"},
                "data": {"resource-threshold-config": config},
            }
        )
    )
    ended, out, err = typed("slo", "check", *strict, "cm.json")
    assert ended == code
    assert "memoryEvictTresholdPercent: " in (out if strict else err)
    assert "did you mean memoryEvictThresholdPercent?" in out + err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run"], "--pods: source file needs at least one file with pods and a NodeSLO"),
        (["run", "--source", "api"], "--node-name: source api needs this node's name"),
        (
            ["controller"],
            "in-cluster configuration: needs KUBERNETES_SERVICE_HOST and _PORT, which every pod has; outside of a pod"
            " give --kubeconfig",
        ),
    ],
)
def test_what_is_missing_is_not_called_none(typed: Typed, arguments: list[str], line: str) -> None:
    code, _, err = typed(*arguments)
    assert (code, err.splitlines()[-1]) == (2, f"koordebpf: {line}")


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("--listen", "foo", "must be host:port, with port 0…65535"),
        ("--listen", "0.0.0.0:99999", "must be host:port, with port 0…65535"),
        ("--probe-listen", "x", "must be host:port, with port 0…65535"),
        ("--audit", "/nope/x", "must be a file that can be written: No such file or directory"),
        ("--frames", "/nope/x", "must be a file that can be written: No such file or directory"),
        ("--run-dir", "/nope/x", "/nope must be a folder that is there"),
    ],
)
def test_arguments_are_checked_before_the_kernel_is_touched(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, option: str, value: str, rule: str
) -> None:
    def touched(*_: object) -> None:
        raise AssertionError("the kernel was touched")

    monkeypatch.setattr("koordebpf.agent.run.open_scope", touched)
    Path("pods.yaml").write_text("")
    code, out, err = typed("run", "--pods", "pods.yaml", option, value)
    assert (code, out, err) == (2, "", f"koordebpf: {option}: {value!r}: {rule}\n")
    assert not Path("/nope").exists()


def test_a_file_without_an_audit_line_is_refused_in_four_lines(typed: Typed) -> None:
    Path("r.md").write_text("# title\n\ntext\n" * 100)
    code, out, err = typed("explain", "r.md")
    assert code == 2
    assert err.splitlines() == [
        "left out: r.md:1:1: must be an audit line: invalid character",
        "left out: r.md:3:5: must be an audit line: invalid character",
        "left out: r.md:4:1: must be an audit line: invalid character",
        "left out: 197 more lines",
    ]
    assert "no decision to evict a pod in r.md" in out


def test_a_plan_that_only_suppresses_says_so_first(typed: Typed) -> None:
    _, out, _ = typed("plan", HELD)
    assert out.startswith("limits best-effort pods to 7 CPUs; no eviction: feature gate BEMemoryEvict is\noff\n\n")


def test_a_setting_that_is_missing_is_said_as_it_is_typed(typed: Typed) -> None:
    _, out, _ = typed("plan", HELD, "--feature-gates", "MemoryEvict=true")
    assert "set\n    evictEnabledPriorityThreshold\n" in out or "set evictEnabledPriorityThreshold\n" in out
    assert "not config" not in out


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_kubeconfig_in_a_folder_that_one_may_not_enter(tmp_path: Path, typed: Typed) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    (folder / "config").write_text("")
    tmp_path.chmod(0o755)
    os.seteuid(65534)
    try:
        code, _, err = typed("run", "--kubeconfig", str(folder / "config"))
    finally:
        os.seteuid(0)
    assert code == 2
    assert err.endswith("Permission denied\n")
