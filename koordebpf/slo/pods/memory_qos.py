"""A pod's annotation koordinator.sh/memoryQOS: a policy, and fields that replace those of its class.

Source: koordinator apis/slo/v1alpha1 PodMemoryQOSConfig, and the annotation's name in pod.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.strategies.resource_qos import MemoryQOS

MEMORY_QOS_ANNOTATION = "koordinator.sh/memoryQOS"  # of a Pod
_MOST_CHARACTERS = 4096  # Why: all fields together take 400


class PodMemoryQOS(MemoryQOS, frozen=True, omit_defaults=True):
    """What the annotation says; `enable` has no meaning here.

    `policy` none: the pod has no memory QoS. auto: the recommended values of its class are in place of those of the
    NodeSLO. default, or empty: the NodeSLO's. The other fields then replace single values.
    """

    policy: Literal["none", "auto", "default", ""] = ""


def pod_memory_qos(annotations: Mapping[str, str]) -> PodMemoryQOS | None:
    """Return what the annotation says; None: there is none.

    Raises:  ConfigError: it is not of its form, or a value is out of its range.
    """
    text = annotations.get(MEMORY_QOS_ANNOTATION)
    if not text:
        return None
    path = f"annotation {MEMORY_QOS_ANNOTATION}"
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(path, f"{text[:80]}…", f"must be at most {_MOST_CHARACTERS} characters")
    try:
        return msgspec.json.decode(text, type=PodMemoryQOS)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(path, text[:80], str(error)) from None
