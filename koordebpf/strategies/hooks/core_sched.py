"""CoreSched: which containers may run beside each other on the two threads of a core.

Source: koordinator pkg/koordlet/runtimehooks/hooks/coresched; apis/slo/v1alpha1/pod.go.
"""

from __future__ import annotations

from koordebpf.slo.strategies.resource_qos import CPUQOS, ResourceQOSStrategy
from koordebpf.state.pods.hook_pods import HookPod
from koordebpf.strategies.hooks.group_identity import CLASSES, class_of, cpu_qos
from koordebpf.strategies.hooks.values import CORE_SCHED, HookRules, Setting

GROUP_LABEL = "koordinator.sh/core-sched-group-id"
POLICY_LABEL = "koordinator.sh/core-sched-policy"
_EXPELLER = "-expeller"  # what koordlet appends where a class expels others from its cores


def core_sched_group(pod: HookPod, rules: HookRules) -> Setting[str] | None:
    """Return the group that a pod's containers share a cookie with; "" is no cookie. None: it is left alone.

    The label core-sched-group-id, or with policy exclusive the pod's UID; with none no cookie. Pods that name no group
    share one.
    """
    if pod.koord_qos == "SYSTEM":
        return None
    cpu = _enabled(rules.qos, class_of(pod, rules.qos) or "lsClass")
    if cpu is None:
        return None
    policy = pod.labels.get(POLICY_LABEL, "")
    if policy == "none":
        return Setting("", CORE_SCHED, f"label {POLICY_LABEL} none")
    group, source = (
        (pod.uid, f"label {POLICY_LABEL} exclusive")
        if policy == "exclusive"
        else (pod.labels.get(GROUP_LABEL, ""), f"label {GROUP_LABEL}")
    )
    # Groups are a namespace's own: a tenant must not run beside another one's tasks by naming its group.
    group = group if policy == "exclusive" or not group else f"{pod.namespace}/{group}"
    return Setting(f"{group}{_EXPELLER if cpu.coreExpeller else ''}" or "-", CORE_SCHED, source)


def pod_idle(pod: HookPod, rules: HookRules) -> Setting[int] | None:
    """Return that a pod is idle (cpu.idle): its class is enabled with schedIdle. None: it is not, or has no label.

    At the pod's level: kubelet writes the weight of its QoS directories, which the kernel refuses while they are idle.
    """
    name = CLASSES.get(pod.koord_qos)
    cpu = _enabled(rules.qos, name) if name is not None else None
    if cpu is None or cpu.schedIdle != 1 or not rules.has_idle:
        return None
    return Setting(1, CORE_SCHED, f"NodeSLO resourceQOSStrategy.{name}.cpuQOS.schedIdle")


# cpuQOS of a class that is enabled, under that policy.
def _enabled(qos: ResourceQOSStrategy | None, name: str) -> CPUQOS | None:
    if qos is None or qos.policies is None or qos.policies.cpuPolicy != "coreSched":
        return None
    cpu = cpu_qos(qos, name)
    return cpu if cpu is not None and cpu.enable else None
