"""What pods with batch resources get: weight, quota and memory limit, at the pod's level and at the containers'."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from koordebpf.slo.pods.extended_resources import BATCH_CPU, EXTENDED_RESOURCE_ANNOTATION
from koordebpf.state.pods.hook_pods import annotated_pod
from koordebpf.strategies.hooks.adjust import UNLIMITED, Adjustment, HookContainer, HookPod, HookRules
from koordebpf.strategies.hooks.adjust import container_adjustment as of_container
from koordebpf.strategies.hooks.adjust import pod_adjustment as of_pod
from tests.support.values.hooks import batch, hook_pod_of

GIB = 1 << 30
RULES = HookRules(hooks=frozenset({"BatchResource"}))


def values(adjustment: Adjustment) -> tuple[int | None, ...]:
    settings = (adjustment.cpu_shares, adjustment.cfs_quota_us, adjustment.memory_limit_bytes)
    return tuple(None if each is None else each.value for each in settings)


@pytest.mark.parametrize(
    ("containers", "pod", "each"),
    [
        ({"a": batch(500, 1000, GIB)}, (512, 100_000, GIB), [(512, 100_000, GIB)]),
        (
            {"a": batch(500, 1000, GIB), "b": batch(1500, 2500, 2 * GIB)},
            (2048, 350_000, 3 * GIB),
            [(512, 100_000, GIB), (1536, 250_000, 2 * GIB)],
        ),
        # no limit is no limit, not the least quota there is
        ({"a": batch(500)}, (512, UNLIMITED, UNLIMITED), [(512, UNLIMITED, UNLIMITED)]),
        (
            {"a": batch(500, 1000, GIB), "b": batch(500)},
            (1024, UNLIMITED, UNLIMITED),
            [(512, 100_000, GIB), (512, UNLIMITED, UNLIMITED)],
        ),
        # the least that the kernel takes
        ({"a": batch(1, 1, 4096)}, (2, 1000, 4096), [(2, 1000, 4096)]),
        ({"a": batch(0, 1000, GIB)}, (2, 100_000, GIB), [(2, 100_000, GIB)]),
        ({"a": batch(8_192_000, 0, GIB)}, (1 << 18, UNLIMITED, GIB), [(1 << 18, UNLIMITED, GIB)]),
    ],
)
def test_a_pod_gets_what_its_containers_get_together(containers, pod, each):
    made = hook_pod_of("BE", containers)
    assert values(of_pod(made, RULES)) == pod
    assert [values(of_container(made, container, RULES)) for container in made.containers] == each


@pytest.mark.parametrize("qos", ["LS", "LSR", "LSE", "SYSTEM", "", "be"])
def test_only_pods_whose_label_says_be_get_anything(qos):
    made = hook_pod_of(qos, {"a": batch(500, 1000, GIB)})
    assert values(of_pod(made, RULES)) == (None, None, None)
    assert values(of_container(made, made.containers[0], RULES)) == (None, None, None)


def test_a_pod_without_extended_resources_is_left_alone():
    made = hook_pod_of("BE", {"a": {"limits": {"cpu": "1", "memory": "1Gi"}}})
    assert values(of_pod(made, RULES)) == (None, None, None)


def test_a_container_without_them_counts_by_its_native_limits():
    native = {"requests": {"cpu": "250m"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    made = hook_pod_of("BE", {"a": batch(500, 1000, GIB), "injected": native})
    assert values(of_pod(made, RULES)) == (768, 200_000, 2 * GIB)
    assert values(of_container(made, made.containers[1], RULES)) == (None, None, None)


def test_a_container_without_any_limit_takes_the_pods_limit_away():
    made = hook_pod_of("BE", {"a": batch(500, 1000, GIB), "injected": {}})
    assert values(of_pod(made, RULES))[1:] == (UNLIMITED, UNLIMITED)


def test_an_init_container_has_room_in_its_pod():
    made = hook_pod_of("BE", {"a": batch(500, 1000, GIB)}, init={"unpack": batch(2000, 4000, 3 * GIB)})
    assert values(of_pod(made, RULES)) == (2048, 400_000, 3 * GIB)


def test_a_sidecar_runs_beside_the_others():
    made = hook_pod_of("BE", {"a": batch(500, 1000, GIB)}, sidecars={"log": batch(500, 1000, GIB)})
    assert values(of_pod(made, RULES)) == (1024, 200_000, 2 * GIB)


def test_quotas_are_lifted_while_suppression_holds_the_directory_by_quota():
    made = hook_pod_of("BE", {"a": batch(500, 1000, GIB)})
    rules = HookRules(hooks=frozenset({"BatchResource"}), is_quota_off=True, normalization_ratio=2.0)
    assert values(of_pod(made, rules)) == (512, UNLIMITED, GIB)
    quota = of_container(made, made.containers[0], rules).cfs_quota_us
    assert quota is not None
    assert (quota.value, quota.source) == (UNLIMITED, "NodeSLO cpuSuppressPolicy cfsQuota")


def test_quotas_are_smaller_on_faster_cpus_rounded_up():
    made = hook_pod_of("BE", {"a": batch(500, 1000, GIB)})
    rules = HookRules(hooks=frozenset({"BatchResource"}), normalization_ratio=1.2)
    assert values(of_pod(made, rules)) == (512, 83_334, GIB)


def test_each_value_says_where_it_comes_from():
    made = hook_pod_of("BE", {"a": batch(500, 1000, GIB)})
    adjustment = of_container(made, made.containers[0], RULES)
    assert adjustment.cpu_shares is not None
    assert adjustment.cpu_shares.hook == "BatchResource"
    assert adjustment.cpu_shares.source == "containers[a] requests kubernetes.io/batch-cpu"


NATIVE = {"requests": {"cpu": "250m"}, "limits": {"cpu": "500m", "memory": "64Mi"}}


class TestTheAnnotation:
    def pod(self, spec: object) -> HookPod:
        text = spec if isinstance(spec, str) else json.dumps(spec)
        labels = {"koordinator.sh/qosClass": "BE"}
        made = HookPod("uid-1", "team", "web", labels, {EXTENDED_RESOURCE_ANNOTATION: text})
        return annotated_pod(replace(made, containers=(HookContainer("a"),)))

    @pytest.mark.parametrize("resources", [{}, NATIVE])
    @pytest.mark.parametrize("asked", [batch(8_192_000, 0, 0), batch(9000, 9000, 8 * GIB), {"limits": {BATCH_CPU: 0}}])
    def test_where_the_spec_is_known_it_lifts_no_limit_and_adds_no_weight(self, resources, asked):
        text = json.dumps({"containers": {"a": asked}})
        made = hook_pod_of("BE", {"a": resources}, annotations={EXTENDED_RESOURCE_ANNOTATION: text})
        adjustment = of_pod(made, RULES)
        assert values(adjustment) == values(of_container(made, made.containers[0], RULES)) == (None, None, None)
        assert adjustment.problems == (
            f"pod team/web: annotation {EXTENDED_RESOURCE_ANNOTATION}: no container of the spec has such resources",
        )

    def test_a_spec_that_names_some_counts_alone(self):
        text = json.dumps({"containers": {"a": batch(9000, 9000, GIB), "side": batch(9000, 9000, GIB)}})
        containers = {"a": batch(500, 1000, GIB), "side": NATIVE}
        made = hook_pod_of("BE", containers, annotations={EXTENDED_RESOURCE_ANNOTATION: text})
        assert values(of_pod(made, RULES)) == (768, 150_000, GIB + (64 << 20))
        assert values(of_container(made, made.containers[1], RULES)) == (None, None, None)
        assert of_pod(made, RULES).problems == ()

    @pytest.mark.parametrize(
        "spec",
        [
            "nonsense",
            "[]",
            '{"containers": []}',
            '{"containers": {"a": {"limits": {"kubernetes.io/batch-cpu": {}}}}}',
            '{"containers": {"a": {"limits": {"kubernetes.io/batch-cpu": "-5"}}}}',
            '{"containers": {"a": {"limits": {"kubernetes.io/batch-cpu": "9E"}}}}',
            '{"containers": {"a": {"limits": {"kubernetes.io/batch-memory": "a lot"}}}}',
            "[" * 100_000,
        ],
    )
    def test_what_cannot_be_read_is_named_and_changes_nothing(self, spec):
        adjustment = of_pod(self.pod(spec), RULES)
        assert values(adjustment) == (None, None, None)
        assert len(adjustment.problems) == 1
        assert adjustment.problems[0].startswith("pod team/web: annotation node.koordinator.sh/extended-resource-spec")
        assert len(adjustment.problems[0]) < 400

    def test_a_runtime_that_knows_no_spec_reads_it(self):
        text = json.dumps({"containers": {"a": batch(500, 1000, GIB), "b": batch(500, 1000, GIB)}})
        made = annotated_pod(
            HookPod("uid-1", "team", "web", {"koordinator.sh/qosClass": "BE"}, {EXTENDED_RESOURCE_ANNOTATION: text})
        )
        assert values(of_pod(made, RULES)) == (1024, 200_000, 2 * GIB)
        assert values(of_container(made, made.containers[1], RULES)) == (512, 100_000, GIB)
