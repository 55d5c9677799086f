"""Whatever files of the kernel say, no tick ends, and what the agent writes of it can be read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordebpf.decision.decide_tick import decided_again
from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.store.recorder.rounds import RoundEncoder, ShardReader, ShardRounds
from koordebpf.store.sink import RoundEnded
from koordebpf.units import NS_PER_S
from tests.properties.test_recordings import HEADER
from tests.support.ticked_node import Node

EXTREME = [0, 1, 1 << 20, (1 << 53) + 1, *((1 << at) - 1 for at in (60, 61, 63, 64)), (1 << 64) - 4096, 10**30]
amounts = st.one_of(st.sampled_from(EXTREME), st.integers(0, 1 << 40)).map(str)
odd = st.sampled_from(["", "-1", "max", "\udcff", "0x7", "1e9", "9" * 5000])
numbers = st.one_of(*[amounts] * 9, odd)
ROWS = [
    "inactive_anon",
    "active_anon",
    "inactive_file",
    "active_file",
    "unevictable",
    "shmem",
    "slab_reclaimable",
    "anon",
]
stats = st.one_of(
    st.fixed_dictionaries(dict.fromkeys(ROWS, numbers)),
    st.sampled_from(EXTREME).map(lambda extreme: dict.fromkeys(ROWS, str(extreme))),
).map(lambda rows: "".join(f"{name} {number}\n" for name, number in rows.items()))
KINDS = ("some", "full")
shares = st.sampled_from(["0.00", "100.00", "100.01", "-1.00", "99999.99", "nan"])
pressures = st.builds(
    lambda share, total: "".join(f"{kind} avg10={share} avg60=0.00 avg300=0.00 total={total}\n" for kind in KINDS),
    shares,
    numbers,
)
files = st.fixed_dictionaries({"memory.stat": stats, "memory.current": numbers, "memory.pressure": pressures})


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with contextlib.closing(Node(tmp_path_factory.mktemp("node"))) as made:
        yield made


def write(path: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (path / name).write_bytes(text.encode(errors="surrogateescape"))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(of_node=files, of_pods=st.tuples(files, files), limit=numbers)
def test_a_round_of_any_kernel_files_is_written_and_read(
    node: Node, of_node: dict[str, str], of_pods: tuple[dict[str, str], dict[str, str]], limit: str
) -> None:
    # GIVEN a node of which nothing is as it should be, but that it has a limit
    for path, texts in zip((node.top, *node.pods.values()), (of_node, *of_pods), strict=True):
        write(path, texts)
    write(node.top, {"memory.max": "1" if limit == "max" else limit})
    node.sink.events.clear()
    # WHEN it is measured
    for _ in range(2):
        node.tick(NS_PER_S)
    # THEN each round is a frame and a recording, and they say the same
    rounds = [each for each in node.sink.take(RoundEnded) if isinstance(each, RoundEnded)]
    assert rounds
    made, encoder = ShardRounds(HEADER, with_samples=False), RoundEncoder()
    records = [made.start(0)]
    for at, each in enumerate(rounds):
        raw = encode_frame(each.tick.frame)
        assert json.loads(raw)
        assert decode_frame(raw, "frame") == each.tick.frame
        records += made.add(encoder.encode(each.tick, each.decision, at), b"", [])
    reader = ShardReader(b"".join(records))
    assert len(reader.rounds) == len(rounds)
    for each, head in zip(rounds, reader.rounds, strict=True):
        found = reader.round(head)
        assert found is not None
        assert found.tick == each.tick
        assert found.is_same(decided_again(found.tick))
