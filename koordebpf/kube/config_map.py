"""Which ConfigMap is slo-controller-config: installations of Koordinator give it names of their own."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote

import msgspec

from koordebpf.decoding import convert
from koordebpf.errors import ConfigError

_LABEL: Final = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_Name = Annotated[
    str,
    msgspec.Meta(
        pattern=rf"^{_LABEL}(\.{_LABEL})*$",
        max_length=253,
        description="a name of a ConfigMap, as slo-controller-config",
    ),
]
_Namespace = Annotated[
    str, msgspec.Meta(pattern=f"^{_LABEL}$", description="a name of a namespace, as koordinator-system")
]


class ConfigMapName(msgspec.Struct, frozen=True):
    """The ConfigMap of which NodeSLOs are made, and by which an agent works where the cluster serves no NodeSLO.

    `name`      of the ConfigMap. Why slo-controller-config: Koordinator's own; a vendor's is another, as
                ack-slo-config. Other names need resourceNames of their own in deploy/base/rbac.yaml.
    `namespace` of the ConfigMap. Why koordinator-system: as with Koordinator; a vendor's is another, as kube-system.
    """

    name: _Name = "slo-controller-config"
    namespace: _Namespace = "koordinator-system"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def list_path(self) -> str:
        """Where the API server lists the ConfigMaps of its namespace."""
        return f"/api/v1/namespaces/{quote(self.namespace, safe='')}/configmaps"

    @property
    def selector(self) -> str:
        """The field selector that it alone has there."""
        return f"metadata.name={self.name}"

    @property
    def path(self) -> str:
        """Where the API server has it."""
        return f"{self.list_path}/{quote(self.name, safe='')}"


CONFIG_MAP: Final = ConfigMapName()


def parse_config_map(text: str, option: str) -> ConfigMapName:
    """Return what NAMESPACE/NAME, or NAME in Koordinator's own namespace, stands for; `option` is for the error.

    Raises:  ConfigError: it is no name of Kubernetes'.
    """
    namespace, slash, name = text.rpartition("/")
    return named_config_map(name, namespace if slash else None, option)


def named_config_map(name: str | None, namespace: str | None, option: str) -> ConfigMapName:
    """Return the ConfigMap of this name and namespace; None: Koordinator's own.

    Raises:  ConfigError: one of them is no name of Kubernetes'.
    """
    given = {key: each for key, each in (("name", name), ("namespace", namespace)) if each is not None}
    try:
        return convert(given, ConfigMapName)
    except msgspec.ValidationError:
        text = "/".join(filter(None, (namespace, name)))
        raise ConfigError(option, text, "must be a name of Kubernetes', as ack-slo-config in kube-system") from None
