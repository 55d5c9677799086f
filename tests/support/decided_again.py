"""How many decisions of live agents were decided again, and came out equal.

On its own, so that conftest.py, which prints it, imports nothing of the package: a change would reach every test then.
"""

from __future__ import annotations

from collections import Counter

counts: Counter[str] = Counter()  # of this process
