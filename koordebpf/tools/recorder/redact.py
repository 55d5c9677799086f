"""A recording without names: each round with hashes in place of them, and the decision on that."""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import re
import secrets
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from koordebpf.decision.decide_tick import TickFrame
from koordebpf.decision.frames import ANNOTATIONS, LABELS, decode_json
from koordebpf.decision.strategies import FEATURE_GATES, PARTS, STRATEGIES
from koordebpf.errors import ConfigError
from koordebpf.jobs.prediction.predict import RAW_ALLOCATABLE_ANNOTATION
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.cpu_normalization import RATIO_ANNOTATION
from koordebpf.slo.manager import shapes as configmap
from koordebpf.slo.manager.effective import BANDWIDTH_ANNOTATION
from koordebpf.slo.pods.cpu_placement import (
    MANAGER_POLICY_ANNOTATION,
    POD_ALLOCATIONS_ANNOTATION,
    RESERVATION_ANNOTATION,
    SYSTEM_QOS_ANNOTATION,
)
from koordebpf.slo.pods.resource_status import BE_SHARED_POOLS_ANNOTATION, SHARED_POOLS_ANNOTATION
from koordebpf.slo.spec import NodeSLOSpec
from koordebpf.state.outcome import Outcome
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY, KATALYST_RESOURCES, MID_CPU, MID_MEMORY
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.ring import Run
from koordebpf.store.recorder.rounds import RoundEncoder
from koordebpf.store.recorder.stores import FileStore
from koordebpf.store.recorder.values import ROUNDS_LOST, SIGNALS_SEEN, NodeSample, RecordedEvent, RoundObjects
from koordebpf.store.sink import EVENTS
from koordebpf.tools.recorder.rounds import DecidesAgain
from koordebpf.units import GIB, NS_PER_S

_ROOTS = (TickFrame, RoundObjects, NodeSLOSpec, Outcome, RecordedEvent, *EVENTS)
KINDS = frozenset({*(each.__name__ for each in EVENTS), ROUNDS_LOST, SIGNALS_SEEN})
RESOURCES = frozenset({"cpu", "memory", BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY, *KATALYST_RESOURCES})
# Of fields without a type of their own: what the API server, the kubelet and the kernel write there.
_OTHERS = frozenset(
    """
    Pending Running Succeeded Failed Unknown True False true false Guaranteed Burstable BestEffort Always Never
    OnFailure Ready Initialized ContainersReady PodScheduled PodReadyToStartContainers DisruptionTarget
    PodResizePending PodResizeInProgress Memory HugePages In NotIn Exists DoesNotExist IfHealthyBudget AlwaysAllow
    Node NodeSLO Pod v1 v1alpha1 LSE LSR LS BE SYSTEM koord-prod koord-mid koord-batch koord-free
    system-node-critical system-cluster-critical none auto policy rbps wbps riops wiops target max default amd64
    arm64 linux api file http evicted dedicated_cores shared_cores reclaimed_cores system_cores containerd cri-o docker
    """.split()  # noqa: SIM905 - sixty lines else
)
# Of Node and NodeResourceTopology, which tenants do not write.
OF_NODES = frozenset(
    {
        BANDWIDTH_ANNOTATION,
        BE_SHARED_POOLS_ANNOTATION,
        MANAGER_POLICY_ANNOTATION,
        POD_ALLOCATIONS_ANNOTATION,
        RATIO_ANNOTATION,
        RAW_ALLOCATABLE_ANNOTATION,
        RESERVATION_ANNOTATION,
        SHARED_POOLS_ANNOTATION,
        SYSTEM_QOS_ANNOTATION,
        "kubernetes.io/arch",
        "kubernetes.io/os",
    }
)
_CONFIGMAP = tuple(value for name, value in vars(configmap).items() if name.endswith("_KEY"))
_SELECTOR = ("matchLabels", "matchExpressions", "operator", "key", "values", "apiVersion", "kind", "spec", "status")
_LOOSE = ("rounds", "quality", "kernel")  # of events that are no type
# A name may be a word, too: of these fields no word stays.
_NAMES = frozenset(
    (
        *("name", "namespace", "node", "nodeName", "pod_name", "container", "container_name", "comm", "workload"),
        *("uid", "ownPodUid", "killed", "refused"),
    )
)
_KEPT_NAMES = frozenset({"*", "v1", "Pod", *RESOURCES})
_MAPS = frozenset({"labels", "annotations", "matchLabels", "nodeSelector"})
_VALUES = frozenset({"old", "new", "value"})  # of cgroup files
_KEPT_KEYS = ANNOTATIONS | LABELS | OF_NODES
_KEPT_PARTS = re.compile(
    r"|sys|fs|cgroup|proc|dev|run|var|lib|tmp|unified|kubelet|kubepods(-besteffort|-burstable)?(\.slice)?|besteffort"
    r"|burstable|system\.slice|user\.slice|init\.scope|resctrl|schemata|tasks|(cpu|cpuset|cpuacct|memory|io|blkio|pids)"
    r"(,(cpu|cpuacct))?|cgroup\.(procs|freeze|kill)|cpu\.(max|max\.burst|weight|idle)|cpuset\.(cpus|mems)(\.effective)?"
    r"|memory\.(max|high|low|min|reclaim|swap\.max)|io\.(max|weight|latency|cost\.qos|cost\.model)|freezer\.state"
)
_UID = re.compile(r"[0-9a-f]{8}([-_])[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}|\b[0-9a-f]{32,64}\b")
_OF_A_POD = re.compile(r"((kubepods(-besteffort|-burstable)?-)?pod|cri-containerd-|crio-|docker-)?(\.slice|\.scope)?")
_PLAIN = re.compile(
    r"[+-]?\d{1,20}(\.\d{0,9})?([eE][+-]?\d{1,3}|[KMGTPE]i|[numkMGTPE]|%)?"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)"
    r"|\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*"
)
_SMALL = re.compile(r"\d{1,4}")  # of a zone, a disk or a CPU
_RELEASE = re.compile(r"\d+\.\d+(\.\d+)?")
_PART = re.compile(r"[^/=,:;@ ]+")
_VALUE = re.compile(r"[A-Za-z_][\w.-]*")
_KINDS = frozenset(
    ["containerd", "cri-o", "docker", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet", "Job"]
)  # before a name
_SENTENCE = "redacted"


# Words that tell nothing about who runs what: they stay where names are replaced. Derived from the types. Pure.


@functools.cache
def words() -> frozenset[str]:
    """Return the values that a field of a recording may have, as its types say, and those of `_OTHERS`."""
    found = {value for kind in _structs() for each in _fields(kind) for value in _values(each.type)}
    found |= {tag for kind in _structs() if isinstance(tag := kind.__struct_config__.tag, str)}
    names = {*(each.name for each in STRATEGIES), *PARTS}
    return frozenset(
        {*found, *names, *_OTHERS, *KINDS, *RESOURCES, *FEATURE_GATES, *(each.value for each in CgroupFile)}
    )


@functools.cache
def keys() -> frozenset[str]:
    """Return the names of fields, and other keys of objects that are the same everywhere."""
    fields = {name for kind in _structs() for name in (*kind.__struct_fields__, *kind.__struct_encode_fields__)}
    fields |= {name for kind in _structs() if (name := kind.__struct_config__.tag_field) is not None}
    names = {*(each.name for each in STRATEGIES), *PARTS}
    return frozenset(
        {*fields, *names, *FEATURE_GATES, *RESOURCES, *ANNOTATIONS, *LABELS, *_CONFIGMAP, *_SELECTOR, *_LOOSE}
    )


@functools.cache
def _structs() -> tuple[type[msgspec.Struct], ...]:
    found: dict[type[msgspec.Struct], None] = {}
    # Also those of annotations, which no field names: their text is JSON.
    ours = [each for each in msgspec.Struct.__subclasses__() if each.__module__.startswith("koordebpf.")]
    waiting: list[Any] = [*_ROOTS, *ours]
    while waiting:
        each = waiting.pop()
        if isinstance(each, type) and issubclass(each, msgspec.Struct) and each not in found:
            found[each] = None
            waiting += [field.type for field in _fields(each)]
            waiting += each.__subclasses__()
        waiting += [inner for inner in typing.get_args(each) if not isinstance(inner, str | int | bytes)]
    return tuple(found)


def _fields(kind: type[msgspec.Struct]) -> tuple[Any, ...]:
    with contextlib.suppress(NameError):  # a name that is there for the type checker alone
        return msgspec.structs.fields(kind)
    return ()


def _values(kind: Any) -> Iterator[str]:
    if isinstance(kind, type) and issubclass(kind, enum.Enum) and not isinstance(kind, types.GenericAlias):
        yield from (each.value for each in kind if isinstance(each.value, str))
    for inner in typing.get_args(kind):
        if typing.get_origin(kind) is Literal:
            yield from (inner,) if isinstance(inner, str) else ()
        else:
            yield from _values(inner)


# Names out of a round's JSON, by keyed hashes. Pure; a name has the same hash wherever it is.
#
# A string stays only where `words` knows it, or where it is a number, an amount, a time or a list of CPUs. Everything
# else is a name: what is not thought of is replaced, not kept.


class Names:
    """Replaces names. `key` keeps others from trying out what a hash may stand for."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._hashes: dict[str, str] = {}

    def redacted(self, value: Any) -> Any:
        """Return a value of JSON without the names that are in it."""
        return self._walk(value, "")

    def _walk(self, value: Any, field: str) -> Any:
        if isinstance(value, dict):
            return self._of_map(value) if field in _MAPS else self._of_object(value)
        if isinstance(value, list):
            return [self._walk(each, field) for each in value]
        return self._text(value, field) if isinstance(value, str) else value

    def _of_object(self, value: Mapping[str, Any]) -> dict[str, Any]:
        found = {self._field(key): self._walk(each, key) for key, each in value.items()}
        # An expression of a selector: what labels it names, and the values that it looks for, are as in the labels.
        if isinstance(key := value.get("key"), str) and isinstance(values := value.get("values"), list):
            found |= {"key": self._label_key(key), "values": [self._label_value(key, each) for each in values]}
        return found

    def _of_map(self, value: Mapping[str, Any]) -> dict[str, Any]:
        return {self._label_key(key): self._label_value(key, each) for key, each in value.items()}

    def _label_key(self, key: str) -> str:
        return key if key in _KEPT_KEYS else self._parts(key)

    def _label_value(self, key: str, value: Any) -> Any:
        if not isinstance(value, str):
            return self._walk(value, "")
        return self._text(value, "") if key in _KEPT_KEYS else self._parts(value)

    def _field(self, key: str) -> str:
        if key in keys() or _SMALL.fullmatch(key):
            return key
        return self._path(key) if key.startswith("/") else self._parts(key)

    def _text(self, text: str, field: str) -> str:
        if field in _NAMES:
            return text if text in _KEPT_NAMES or _SMALL.fullmatch(text) else self._parts(text)
        if not text or text in words() or _PLAIN.fullmatch(text):
            return text
        if field == "kernel" and (release := _RELEASE.match(text)):
            return release[0]
        if text[0] in "{[":
            return self._json(text)
        if text.startswith("/"):
            return self._path(text)
        if field in _VALUES:
            return _VALUE.sub(lambda match: match[0] if match[0] in words() else self._name(match[0]), text)
        return _SENTENCE if any(map(str.isspace, text)) else self._parts(text)

    def _json(self, text: str) -> str:
        try:
            return msgspec.json.encode(self._walk(msgspec.json.decode(text), "")).decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._name(text)

    def _path(self, path: str) -> str:
        return "/".join(map(self._part, path.split("/")))

    def _part(self, part: str) -> str:
        if _KEPT_PARTS.fullmatch(part) or part in words():
            return part
        if (uid := _UID.search(part)) and _OF_A_POD.fullmatch(part[: uid.start()] + part[uid.end() :]):
            return part[: uid.start()] + self._uid(uid[0]) + part[uid.end() :]
        return self._name(part)

    # Those of `namespace/name`, `key=value`, `containerd://id`; a sentence in a name's place is one name.
    def _parts(self, text: str) -> str:
        return _PART.sub(lambda match: match[0] if match[0] in _KINDS else self._name(match[0]), text)

    def _name(self, name: str) -> str:
        if _UID.fullmatch(name):
            return self._uid(name)
        found = self._hashes.get(name)
        if found is None:
            found = f"n{self._digest(name)[:10]}"
            self._hashes[name] = self._hashes[found] = found  # what is redacted already stays
        return found

    # Of the same form, since kubelet's cgroups have it in their names, also with _ for -.
    def _uid(self, uid: str) -> str:
        if not {"-", "_"} & set(uid):
            return self._hashes.get(uid) or self._keep(uid, self._digest(uid).ljust(len(uid), "0")[: len(uid)])
        plain = uid.replace("_", "-")
        digest = self._hashes.get(plain)
        if digest is None:
            hexed = self._digest(plain)[:32]
            parts = (hexed[:8], hexed[8:12], hexed[12:16], hexed[16:20], hexed[20:])
            digest = self._keep(plain, "-".join(parts))
        return digest.replace("-", "_") if "_" in uid else digest

    def _keep(self, name: str, digest: str) -> str:
        self._hashes[name] = self._hashes[digest] = digest
        return digest

    def _digest(self, name: str) -> str:
        digest = hashlib.blake2b(name.encode(errors="surrogatepass"), key=self._key, digest_size=32)
        return digest.hexdigest()


def redact_recording(recording: Recording, output: Path) -> str:
    """Write a redacted copy, whole or not at all; return what it has, in words.

    Raises:  ConfigError: it cannot be written.
    """
    names, again, encoder = Names(secrets.token_bytes(32)), DecidesAgain(), RoundEncoder(is_bounded=False)
    events, samples = recording.events(), sorted(recording.samples(), key=lambda each: each.at_ns)
    redacted = _Rounds(names)
    written = otherwise = refused = 0
    store = FileStore(output, Run(secrets.token_hex(4), "redacted"), GIB, redacted=True, option="OUT")
    try:
        for each in recording.rounds():
            tick = redacted.tick(each.tick)
            if tick is None:
                refused += 1
                continue
            decision = again.decide(tick)
            otherwise += (decision.carried is not None) != each.is_decision
            made = encoder.encode(tick, decision, each.wall_ns)
            before = [event for event in events if event.wall_s * NS_PER_S <= each.wall_ns]
            events = events[len(before) :]
            taken = [sample for sample in samples if sample.at_ns <= made.mono_ns]
            samples = samples[len(taken) :]
            store.add(made, _samples_raw(taken), [redacted.event(event) for event in before])
            written += 1
        store.add_events([redacted.event(event) for event in events], int(1e9 * (events[-1].wall_s if events else 0)))
        store.commit()
    except OSError as error:
        raise ConfigError("OUT", str(output), f"must be a file that can be written: {error.strerror}") from error
    finally:
        store.close()
    of = f"{written} rounds; {otherwise} act now and did not before, or the other way round"
    return f"{of}; {refused} could not be redacted and are left out" if refused else of


def _samples_raw(samples: list[NodeSample]) -> bytes:
    return msgspec.json.encode(samples) if samples else b""


class _Rounds:
    # What was redacted before is the same value again, so that it is encoded once.
    def __init__(self, names: Names) -> None:
        self._names = names
        self._pods: tuple[object, Any] = (None, None)

    def tick(self, tick: TickFrame) -> TickFrame | None:
        plain = msgspec.json.decode(msgspec.json.encode(tick))
        try:
            found = decode_json(msgspec.json.encode(self._names.redacted(plain)), "redacted", TickFrame)
        except ConfigError:
            return None
        before, pods = self._pods
        if tick.frame.pods is before and pods == found.frame.pods:
            found = msgspec.structs.replace(found, frame=msgspec.structs.replace(found.frame, pods=pods))
        self._pods = tick.frame.pods, found.frame.pods
        return found

    def event(self, event: RecordedEvent) -> RecordedEvent:
        kind = event.kind if event.kind in KINDS else "Other"
        return msgspec.structs.replace(event, kind=kind, data=self._names.redacted(event.data))
