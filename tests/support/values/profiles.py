"""Hypothesis as this repository uses it: `quick` by default, and `thorough` where HYPOTHESIS_PROFILE says so.

Neither has a deadline: a loaded machine is not a wrong result.
"""

import os

from hypothesis import HealthCheck, settings

for name, examples in (("quick", 25), ("thorough", 100)):
    settings.register_profile(name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
