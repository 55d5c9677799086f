"""Hypothesis as this repository uses it: no deadline, since a loaded machine is not a wrong result."""

from hypothesis import HealthCheck, settings

settings.register_profile("koordebpf", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("koordebpf")
