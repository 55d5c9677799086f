"""A node made of real cgroups, for host tests and benchmarks: the demo's own."""

from __future__ import annotations

from koordebpf.demo.node import NodeCgroup
from koordebpf.units import MIB

__all__ = ["MIB", "NodeCgroup"]
