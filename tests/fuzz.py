"""Mutated bytes for everything that is decoded: `make fuzz`, for a minute; `make fuzz SECONDS=3600`, for longer.

Each decoder gets mutations of valid input: bits flipped, parts cut or repeated, JSON nested deeply. It may return a
value or raise the errors that its callers handle; anything else is a finding. A finding's input is written into
.make/fuzz, and `python -m tests.fuzz FILE` decodes it again. The seed is printed; `--seed` repeats a run. `--inputs`
ends after so many of each decoder: with a seed that is the same work on every machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

from koordebpf.act.writer.journal import read_journal, this_boot
from koordebpf.decision.decide_tick import decided_again
from koordebpf.decision.frames import decode_frame, decode_json
from koordebpf.decision.node_plan import NodePlan
from koordebpf.errors import KoordebpfError
from koordebpf.events.layout import decode
from koordebpf.kube.sources.manifest import parse_manifests
from koordebpf.policy.decide import decide
from koordebpf.slo.nodeslo import parse_nodeslo
from koordebpf.slo.pods import cpu_placement
from koordebpf.slo.pods.eviction import allows_eviction, eviction_priority
from koordebpf.slo.spec import parse_spec
from koordebpf.state.build import view_of_frame
from koordebpf.store.budget import KeptBudget
from koordebpf.store.previous import decision_of_today
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.rounds import RoundEncoder, ShardReader, ShardRounds
from koordebpf.store.recorder.shard import ShardEncoder
from koordebpf.store.recorder.values import Pace, RecordedEvent, RecordingHeader, StoredRound, decode_msgpack
from koordebpf.store.wal import read_left
from tests.support.values.rounds import encoded

TESTS = Path(__file__).resolve().parent
FINDINGS = TESTS.parent / ".make" / "fuzz"
_PREVIOUS = TESTS / "golden" / "previous"
_BATCH = 200  # inputs of one decoder before the next one's turn
_DEEP = 20_000
_TOKENS = (
    *(b"null", b"-1", b"1e999", b"NaN", b"true", b'""', b"{}", b"[]", b"\xff", b"\0", b"\n", b'"\\ud800"', b"\\u0000"),
    *(str(1 << bits).encode() for bits in (31, 32, 63, 64, 200)),
    b"[" * _DEEP, b'{"a":' * _DEEP, b"9" * 5000,
)  # fmt: skip
_NODESLO = {
    "spec": {
        "resourceUsedThresholdWithBE": {
            "enable": True,
            "memoryEvictThresholdPercent": 70,
            "cpuSuppressPolicy": "cpuset",
        },
        "resourceQOSStrategy": {"beClass": {"memoryQOS": {"enable": True, "minLimitPercent": 10}}},
        "cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 1000},
        "hostApplications": [{"name": "nginx", "qos": "LS", "cgroupPath": {"base": "CgroupRoot"}}],
    }
}
_ANNOTATIONS = (
    b'{"cpuset":"0-3,7","numaNodeResources":[{"node":0}]}',
    b'{"resources":{"cpu":"2"},"reservedCPUs":"0,1-2","applyPolicy":"Default"}',
    b'[{"uid":"u","cpuset":"4-5"}]',
    b'{"policy":"static"}',
    b'["BEMemoryEvict","MemoryEvict"]',
    b"-2147483648",
)


class Decoder(msgspec.Struct, frozen=True):
    """What reads bytes that may be anything, and valid input of it."""

    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]


def _in_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def write_and_read(raw: bytes) -> object:
        with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="koordebpf-fuzz-") as file:
            file.write(raw)
            file.flush()
            return read(Path(file.name))

    return write_and_read


def _annotations(raw: bytes) -> None:
    text = raw.decode(errors="replace")
    every = {
        value: text for name, value in vars(cpu_placement).items() if name.endswith("_ANNOTATION")
    }  # fmt: skip
    cpu_placement.pod_cpus(every, 4000)
    cpu_placement.node_cpus(every, every)
    allows_eviction(text, "BEMemoryEvict")
    eviction_priority({"koordinator.sh/eviction-priority": text})


def _nodeslo(raw: bytes) -> None:
    parse_spec(raw)
    parse_nodeslo(raw)


_HEADER = RecordingHeader(koordebpf="0", run="0123abcd", node="n", pace=Pace.ALL, wall_s=1.0)


def _shard() -> list[bytes]:
    made, encoder = ShardRounds(_HEADER, with_samples=True), RoundEncoder()
    records = [made.start(0)]
    for second in range(3):
        records += made.add(encoded(second, encoder), b"[[1,2,3,null,null,null]]", [RecordedEvent("TickFailed", 1.0)])
    return records


def _rounds(raw: bytes) -> None:
    reader = ShardReader(raw, raw[:64])
    for head in reader.rounds:
        reader.round(head)
    list(reader.events())
    list(reader.samples())


def _stored_round() -> bytes:
    return encoded(1).raw


# With headers and CRCs that are right, so that what is damaged is the content.
def _round_content(raw: bytes) -> None:
    encoder = ShardEncoder(_HEADER)
    records = [encoder.start(0), encoder.objects(encoded(1).objects_raw, 0), encoder.round(raw, 0, is_decision=True)]
    reader = ShardReader(b"".join(records))
    found = reader.round(reader.rounds[0])
    if found is not None:
        decided_again(found.tick)


def _frames_of_version_1() -> list[bytes]:
    lines = (_PREVIOUS / "frames.jsonl").read_bytes().splitlines()
    return [json.dumps(json.loads(line)["frame"]).encode() for line in lines]


def _decisions_of_version_1() -> list[bytes]:
    recording = Recording(TESTS / "golden" / "what_if" / "at-70.rounds")
    rounds = [shard.content.raw(head) for _, shard in recording.shards for head in shard.rounds]
    return [decode_msgpack(raw, StoredRound).decision for raw in rounds[:20]]


# What `ShardReader.round` passes over is no finding.
def _decision_of_version_1(raw: bytes) -> None:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decision_of_today(raw)


def decoders() -> dict[str, Decoder]:
    """Return every decoder by name."""
    captures = [json.loads(path.read_text()) for path in sorted((TESTS / "golden").glob("ring_records_*.json"))]
    frames = tuple(path.read_bytes() for path in sorted((TESTS / "scenarios/frames").glob("*.json")))
    plans = tuple(path.read_bytes() for path in sorted((TESTS / "scenarios/frames").glob("*.plan.json")))
    log = (_PREVIOUS / "in-flight.jsonl").read_bytes()
    journal = (_PREVIOUS / "writes.journal").read_bytes()
    boot_id = json.loads(journal.splitlines()[0])["boot_id"]
    pod = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "uid": "u"}, "spec": {}}).encode()
    return {
        "ring-record": Decoder(
            decode, tuple(bytes.fromhex(each["bytes"]) for one in captures for each in one["records"])
        ),
        "frame": Decoder(
            lambda raw: decide(view_of_frame(decode_frame(raw, "frame"))),
            (*sorted(set(frames) - set(plans)), *_frames_of_version_1()),
        ),
        "decision": Decoder(_decision_of_version_1, tuple(_decisions_of_version_1())),
        "plan": Decoder(lambda raw: decode_json(raw, "plan", NodePlan), plans),
        "wal": Decoder(read_left, (log,)),
        "budget": Decoder(
            _in_file(lambda path: KeptBudget(path, now_ns=1 << 62)), ((_PREVIOUS / "evictions.json").read_bytes(),)
        ),
        "journal": Decoder(_in_file(read_journal), (journal.replace(boot_id.encode(), this_boot().encode()),)),
        "rounds": Decoder(_rounds, (b"".join(_shard()),)),
        "round": Decoder(_round_content, (_stored_round(),)),
        "nodeslo": Decoder(_nodeslo, (json.dumps(_NODESLO).encode(),)),
        "annotations": Decoder(_annotations, _ANNOTATIONS),
        "manifest": Decoder(
            lambda raw: parse_manifests({"pods.yaml": raw}),
            (pod, b"apiVersion: v1\nkind: Pod\nmetadata: {name: a, uid: u}\nspec: {}\n"),
        ),
    }


def mutated(raw: bytes, chance: random.Random) -> bytes:
    """Return it with one to four mutations."""
    data = bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        at, end = sorted(chance.randint(0, len(data)) for _ in range(2))
        match chance.randrange(6):
            case 0 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 1:
                del data[at : min(end, at + 64)]
            case 2:
                data[at:at] = data[at : min(end, at + 256)]
            case 3:
                data[at:at] = chance.choice(_TOKENS)
            case 4:
                _replace_value(data, at, chance.choice(_TOKENS))
            case _:
                del data[at:]
    return bytes(data)


def _replace_value(data: bytearray, at: int, token: bytes) -> None:
    # What stands between a colon and the next comma: the rest stays valid JSON.
    if (colon := data.find(b":", at)) >= 0:
        ends = [found for end in b",}]" if (found := data.find(end, colon)) >= 0]
        data[colon + 1 : min(ends, default=len(data))] = token


def finding(read: Callable[[bytes], object], raw: bytes) -> str | None:
    """Return the traceback of an error that no caller expects."""
    try:
        read(raw)
    except KoordebpfError:
        return None
    except Exception:
        return traceback.format_exc(limit=-6)
    return None


def fuzz(seconds: float, inputs: float, seed: int, chosen: dict[str, Decoder]) -> int:
    """Fuzz each decoder in turn; print what was tried and found. Return the number of decoders with a finding.

    What a decoder gets depends on the seed alone.
    """
    tried = dict.fromkeys(chosen, 0)
    chances = {name: random.Random(f"{seed} {name}") for name in chosen}
    found: set[str] = set()
    end = time.monotonic() + seconds
    while left := [name for name in chosen if name not in found and tried[name] < inputs]:
        for name in left:
            for _ in range(int(min(_BATCH, inputs - tried[name]))):
                if time.monotonic() > end:
                    return _print_counts(seed, tried, found)
                raw = mutated(chances[name].choice(chosen[name].seeds), chances[name])
                tried[name] += 1
                if (problem := finding(chosen[name].read, raw)) is not None:
                    FINDINGS.mkdir(parents=True, exist_ok=True)
                    path = FINDINGS / f"{name}-{seed}-{tried[name]}"
                    path.write_bytes(raw)
                    found.add(name)
                    print(f"{name}: {path}\n{problem}", flush=True)
                    break
    return _print_counts(seed, tried, found)


def _print_counts(seed: int, tried: dict[str, int], found: set[str]) -> int:
    counts = ", ".join(f"{name} {count:,}" for name, count in tried.items())
    print(f"seed {seed}: {counts} inputs; {len(found)} decoders with a finding")
    return len(found)


def main(arguments: list[str]) -> int:
    """Fuzz, or decode findings again; return 1 where there is a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("finding", nargs="*", type=Path, help="decode these files only")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--inputs", type=float, default=math.inf, help="of each decoder")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args(arguments)
    logging.disable()  # a decoder warns of what it passes over
    if options.finding:
        problems = [
            finding(decoders()[path.name.rsplit("-", 2)[0]].read, path.read_bytes()) for path in options.finding
        ]
        print(*(problem for problem in problems if problem), sep="\n")
        return int(any(problems))
    return int(fuzz(options.seconds, options.inputs, options.seed, decoders()) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
