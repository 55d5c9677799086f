"""Opens shadow mode where configurations are set, and loads nothing of it where none are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koordebpf.collect.scope import NodeScope
from koordebpf.store.shadow.settings import ShadowSettings

if TYPE_CHECKING:
    from koordebpf.configuration.settings import AgentConfig
    from koordebpf.jobs.shadow.sink import ShadowSink

NO_SHADOW = ShadowSettings()


def open_shadow(config: AgentConfig, scope: NodeScope, node: str) -> ShadowSink | None:
    """Return the sink that judges the configurations; None: there are none.

    Raises:  ConfigError: a setting of one is none, or has another type.
    """
    settings = config.shadow
    if not settings.configurations:
        return None
    from koordebpf.configuration.variant import shadow_variants
    from koordebpf.decision.what_if.shadow import Shadows
    from koordebpf.decision.what_if.week import ShadowWeek
    from koordebpf.jobs.shadow.sink import ShadowSink
    from koordebpf.store.shadow.kept_week import FOLDER, WeekKeeper

    keeper = None
    if settings.folder is not None:
        now = ShadowWeek(
            node=node,
            is_dry_run=not config.enforce,
            kubelet_hard_bytes=settings.kubelet_hard_bytes,
            settings={each.name: each.settings for each in settings.configurations},
        )
        # By name alone, as recordings are: the id of a cgroup is another one after a restart.
        name = "machine" if scope.kind == "machine" else scope.path.name
        keeper = WeekKeeper(settings.folder / FOLDER / f"{name}.json", now)
    shadows = Shadows(shadow_variants(settings), settings.kubelet_hard_bytes)
    return ShadowSink(shadows, keeper, scope.node_cgroup_id)
