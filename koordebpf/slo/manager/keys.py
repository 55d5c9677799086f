"""The keys of the ConfigMap `slo-controller-config`.

Source: koordinator apis/configuration/slo_controller_config.go.
"""

from __future__ import annotations

from typing import Final

THRESHOLD_KEY: Final = "resource-threshold-config"
QOS_KEY: Final = "resource-qos-config"
CPU_BURST_KEY: Final = "cpu-burst-config"
SYSTEM_KEY: Final = "system-config"
HOST_APPLICATION_KEY: Final = "host-application-config"
COLOCATION_KEY: Final = "colocation-config"
