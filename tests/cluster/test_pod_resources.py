"""Kubernetes' own functions count generated pods as the golden file `pod_resources.json.gz` says.

`python -m tests.cluster.test_pod_resources` writes that file.
"""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.binaries import say_line
from tests.cluster.go_programs import program_of
from tests.support.values.resourced_pods import resourced_pods

pytestmark = pytest.mark.slow

VECTORS = Path(__file__).parents[1] / "golden/pod_resources.json.gz"
SEED, COUNT = 41, 2500


def counted() -> list[dict[str, Any]]:
    program = program_of(Path(__file__).parent / "resources", "pod-resources", say_line)
    pods = resourced_pods(SEED, COUNT)
    lines = "".join(f"{json.dumps(each)}\n" for each in pods)
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    answers = map(json.loads, done.stdout.splitlines())
    return [{"pod": pod, **answer} for pod, answer in zip(pods, answers, strict=True)]


def test_kubernetes_counts_these_pods_as_it_did() -> None:
    assert counted() == json.loads(gzip.decompress(VECTORS.read_bytes()))


if __name__ == "__main__":
    VECTORS.write_bytes(gzip.compress(json.dumps(counted(), separators=(",", ":")).encode(), 9, mtime=0))
