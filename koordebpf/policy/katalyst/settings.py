"""What an operator may set of Katalyst's eviction manager: section `eviction.katalyst`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from koordebpf.policy.katalyst.inner import InnerSettings
from koordebpf.policy.katalyst.killers import KillerSettings
from koordebpf.policy.katalyst.pods import QosSelectors, SkipSettings
from koordebpf.slo.katalyst.access import AccessSettings
from koordebpf.units import NS_PER_MS, NS_PER_S

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


class KatalystSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How plugins are asked and what is done about their answers.

    `plugins`       of the plugins inside, those that run: names, `-name` for all but that one, `*` for all. Why *:
                    Katalyst's default is none, and every deployment sets *.
    `dry_run`       plugins whose victims are counted and not evicted, in the same words. Why none: Katalyst's.
    `sync_ns`       from the end of one round to the next. Why 5 s: Katalyst's. Pressure does not wait for it.
    `deadline_ns`   of one call of a plugin outside. Why 0.8 s: with one that hangs, the answers of the others count
                    within two seconds; Katalyst gives each call 10 s, which is the most here.
    `transition_ns` for how long a condition stays after it was met last. Why 5 min: Katalyst's. 0: none is reported.
    `burst`         at most so many pods are evicted in a round, forced ones first; 0: none, below 0: all. Why 3:
                    Katalyst's.
    `taints`        conditions become taints, of the Node and of the CustomNodeResource. Why on: as in Katalyst. Needs
                    enforcement, source api or kubelet, and the rights of deploy/components/katalyst.
    `notices`       a directory of the node where pods that want it find the notice of a soft eviction; empty for none.
                    Why /opt/katalyst: Katalyst's.
    `sockets`       the directory where plugins outside the agent put their sockets; empty for none. Why
                    /var/lib/katalyst/plugin-socks: Katalyst's.
    `killers`       how pods of a QoS level are evicted.
    `records`       plugins outside get, of each pod that they choose from, its PodDisruptionBudget and the evictions of
                    its workload in the last two hours. Why on: both are known here; Katalyst has records only where
                    eviction-record-manager names a component of one's own.
    `skip`          pods that no plugin is asked about.
    `qos`           annotations that give a pod its QoS level.
    `metrics`       Katalyst's own names.
    `access`        which plugins outside may register.
    `inner`         of the plugins inside.
    """

    plugins: tuple[str, ...] = ("*",)
    dry_run: tuple[str, ...] = ()
    sync_ns: Annotated[int, msgspec.Meta(ge=NS_PER_MS)] = 5 * NS_PER_S
    deadline_ns: Annotated[int, msgspec.Meta(ge=10 * NS_PER_MS, le=10 * NS_PER_S)] = 800 * NS_PER_MS
    transition_ns: int = 300 * NS_PER_S
    burst: int = 3
    taints: bool = True
    notices: str = "/opt/katalyst"
    sockets: str = "/var/lib/katalyst/plugin-socks"
    killers: KillerSettings = KillerSettings()
    records: bool = True
    skip: SkipSettings = SkipSettings()
    qos: QosSelectors = QosSelectors()
    metrics: KatalystMetricsSettings = KatalystMetricsSettings()
    access: AccessSettings = AccessSettings()
    inner: InnerSettings = InnerSettings()


def is_listed(name: str, names: tuple[str, ...]) -> bool:
    """Tell whether a list names something: the first of `name` and `-name` decides, else whether there is a `*`.

    Source: katalyst-core pkg/util/general, IsNameEnabled.

    >>> is_listed("a", ("*", "-a")), is_listed("b", ("*", "-a")), is_listed("a", ("a", "-a")), is_listed("a", ())
    (False, True, True, False)
    """
    for each in names:
        if each in (name, f"-{name}"):
            return each == name
    return "*" in names
