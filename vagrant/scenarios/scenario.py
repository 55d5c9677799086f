"""What a scenario's folder says: its pods, what is to be seen, and what may not be. Reads, and judges nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from koordebpf.errors import ConfigError

FOLDER = Path(__file__).parent
_FILE = "scenario.yaml"


class Pod(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One pod. Percentages are of the node's memory.

    Attributes:
        qos: its label `koordinator.sh/qosClass`.
        runs: the script in it, from the scenario's folder.
        priority: of a BE pod.
        limit_percent: its memory limit.
        batch_percent: what it requests of `kubernetes.io/batch-memory`.
        request_percent: what it requests of native memory.
        cpu_millicpu: its CPU limit.
    """

    qos: Literal["LS", "BE"]
    runs: str
    priority: int = 5500
    limit_percent: int | None = None
    batch_percent: int | None = None
    request_percent: int | None = None
    cpu_millicpu: int | None = None


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence, as a regular expression, and which command of koordebpf says it.

    `run` is the log of the agent that protects the node; any other command is asked again and again. `plan` decides the
    node's present moment. The name of a pod: what its script prints. `on_v2`: only a machine with cgroup v2 says it.
    """

    by: str
    says: str
    on_v2: bool = False


class Felt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a pod feels of the strategy: the pods are played twice, at first without it, and a number is compared.

    Attributes:
        by: the pod; the number is in what its script prints.
        says: a regular expression of a line, with one group: the number. Less is better.
        unit: of the number, as it is printed.
        times: how many of these lines are waited for in each half. What counts is the median of the numbers.
        factor: how many times as high it must be without the strategy, at least.
        without: the agent's configuration file in the first half, in the scenario's folder; none: that of the second.
    """

    by: str
    says: str
    unit: str
    times: int
    factor: float
    without: str | None = None


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One story.

    Attributes:
        title: what happens, in a few words.
        pods: by name, in the order in which they start.
        expects: sentences, in the order in which they are said.
        never: what the agent's log may not say, as regular expressions.
        needs_swap: it cannot run on a machine without swap.
        needs_v2: it cannot run on a machine with cgroup v1.
        needs_own_machine: its node is the whole machine, so that only one that is there to be broken runs it.
        needs_dead_man: it cannot run where the kernel has not what the dead man's switch needs.
        felt: what one pod feels, without the strategy and with it.
        fills: looking begins when the node is full, page cache included.
        on_node: a script that runs on the node, in no pod, when all pods run.
        options: of `koordebpf run`.
        config: its configuration file, in the scenario's folder.
        threshold: of the NodeSLO's resourceUsedThresholdWithBE, beside what all scenarios have.
        slo: more of the NodeSLO's spec; $DISK in it is the disk.
        disk_mib: the size of a disk that scripts get as DISK, where there is one.
        batch_percent: the Node's allocatable `kubernetes.io/batch-memory` at the beginning, of its memory.
    """

    title: str
    pods: dict[str, Pod]
    expects: tuple[Expected, ...]
    never: tuple[str, ...] = ()
    needs_swap: bool = False
    needs_v2: bool = False
    needs_own_machine: bool = False
    needs_dead_man: bool = False
    felt: Felt | None = None
    fills: bool = False
    on_node: str | None = None
    options: tuple[str, ...] = ()
    config: str | None = None
    threshold: dict[str, Any] = {}
    slo: dict[str, Any] = {}
    disk_mib: int | None = None
    batch_percent: int | None = None


def names() -> list[str]:
    """Return the names of all scenarios: their folders'."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{_FILE}"))


def load(name: str) -> Scenario:
    """Return a scenario by its name.

    Raises:  ConfigError: there is none of this name, or its file is not one.
    """
    if name not in names():
        raise ConfigError("scenario", name, f"must be one of {', '.join(names())}")
    path = FOLDER / name / _FILE
    try:
        scenario = msgspec.yaml.decode(path.read_bytes(), type=Scenario)
        for pattern in (*scenario.never, *(each.says for each in (*scenario.expects, *_felt(scenario)))):
            re.compile(pattern)
    except (msgspec.DecodeError, re.error) as error:
        raise ConfigError(str(path), None, f"must be a scenario: {error}") from error
    return scenario


def _felt(scenario: Scenario) -> tuple[Felt, ...]:
    return (scenario.felt,) if scenario.felt is not None else ()


def script(name: str, runs: str) -> Path:
    """Return the path of a script that a scenario names."""
    return (FOLDER / name / runs).resolve()
