"""What an operator may set of Katalyst's own metrics: section `eviction.katalyst.metrics`."""

from __future__ import annotations

from typing import Annotated

import msgspec

LabelKey = Annotated[str, msgspec.Meta(min_length=1, max_length=317)]  # a prefix of 253, a slash, a name of 63


class KatalystMetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Metrics under the names that Katalyst's agent gives them.

    `katalyst_names` they are there, beside koordebpf_katalyst_…. Why on: dashboards that were made for Katalyst's agent
                     work; where both run, their jobs tell them apart.
    `pod_labels`     labels of a victim that victims_cnt and dryrun_victims_cnt have too, as pod_<label>. Why none:
                     Katalyst's eviction-pod-metric-labels.
    """

    katalyst_names: bool = True
    pod_labels: Annotated[tuple[LabelKey, ...], msgspec.Meta(max_length=16)] = ()
