"""What became of the conditions that Katalyst's manager reports, and of plugins that ask to be registered. Values."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.slo.katalyst.access import Validation

REPORT_TAINT = "eviction_manager_report_taint"
REPORT_CNR_TAINT = "eviction_manager_report_cnr_taint"
NOTIFY = "pod_notifier"


class KatalystFacts(msgspec.Struct, frozen=True):
    """As of one round.

    `reporters`   what carries decisions out, by name, and its problem; None: it works. One that is not there is none.
    `validations` how often plugins were judged so since the start.
    `sockets`     paths by which no plugin is registered, and why.
    """

    reporters: Mapping[str, str | None] = {}
    validations: Mapping[Validation, int] = {}
    sockets: Mapping[str, str] = {}
