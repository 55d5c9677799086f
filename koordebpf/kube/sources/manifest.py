"""Kubernetes objects out of the text of YAML or JSON files. Pure: text in, values out, or one error.

An object that cannot be read is a `BadObject`, and all others count. What is no YAML or JSON, an unknown kind, and two
objects of which one is too many are the error of the whole: it is another file, or nothing says which part is right.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec
import yaml

from koordebpf.decoding import convert
from koordebpf.errors import NOT_GIVEN, ConfigError, json_error, text_error
from koordebpf.kube.body import reason
from koordebpf.kube.cache.cnr import CNR_VERSION, CustomNodeResource, bounded
from koordebpf.kube.cache.objects import ConfigMap, Namespace, Node, NodeResourceTopology, Pod, PodDisruptionBudget
from koordebpf.kube.config_map import CONFIG_MAP, ConfigMapName

NODESLO_VERSION: Final = "slo.koordinator.sh/v1alpha1"
TOPOLOGY_VERSION: Final = "topology.node.k8s.io/v1alpha1"
_KINDS: Final = (
    "must be Pod, Node, NodeSLO, NodeResourceTopology, CustomNodeResource, PodDisruptionBudget, Namespace,"
    " the ConfigMap with Koordinator's settings or a List of them"
)


T = TypeVar("T")


class BadObject(msgspec.Struct, frozen=True):
    """An object that cannot be read: what it is, as far as it says so, where it is, and the rule that it breaks."""

    kind: str
    namespace: str
    name: str
    path: str
    value: Any
    rule: str

    @property
    def error(self) -> ConfigError:
        """Return it as an error, for who needs this object."""
        return ConfigError(self.path, self.value, self.rule)


class Manifests(msgspec.Struct, frozen=True):
    """All objects of a set of files. None: no file has one. What a PodDisruptionBudget allows is in its status.

    `bad` are objects that cannot be read, and are none of the others. `other_config_maps`: namespace/name of those that
    were passed over.
    """

    pods: tuple[Pod, ...] = ()
    pdbs: tuple[PodDisruptionBudget, ...] | None = None
    node: Node | None = None
    nodeslo: msgspec.Raw | None = None
    slo_controller_config: dict[str, str] | None = None
    topology: NodeResourceTopology | None = None
    namespaces: tuple[Namespace, ...] | None = None  # for their labels
    cnr: CustomNodeResource | None = None
    other_config_maps: tuple[str, ...] = ()
    bad: tuple[BadObject, ...] = ()


_MAX_DEPTH = 1000  # libyaml's own limit from 0.2.6 on


class _Loader(yaml.CSafeLoader):
    # PyYAML composes a nested node by recursion in C, which ends the process where the stack ends; libyaml before 0.2.6
    # sets no limit. PyYAML calls these two before and after each node.
    _depth = 0

    def descend_resolver(self, current_node: yaml.Node | None, current_index: Any) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise yaml.YAMLError(f"exceeded maximum nesting depth of {_MAX_DEPTH}")
        super().descend_resolver(current_node, current_index)

    def ascend_resolver(self) -> None:
        self._depth -= 1
        super().ascend_resolver()

    # Twice the same key is a forgotten `---` or an edit gone wrong; YAML would silently drop the first half of it.
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) != len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


# YAML reads 2026-11-21T12:00:00Z as a date; to Kubernetes a timestamp is text.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def parse_manifests(
    texts: Mapping[str, bytes],
    *,
    among_others: bool = False,
    config_map: ConfigMapName = CONFIG_MAP,
    any_namespace: bool = True,
) -> Manifests:
    """Return the objects of all files, given as text by path.

    Of ConfigMaps `config_map` is read, with `any_namespace` in whatever namespace it says that it is. With
    `among_others` objects of other kinds are passed over: what is applied with kubectl has a Service, too.

    Raises:  ConfigError: a file is neither YAML nor JSON, an object has an unknown kind, a pod the UID of another, a
             PodDisruptionBudget or Namespace the name of another, or there are two Nodes, NodeSLOs,
             NodeResourceTopologies, CustomNodeResources or ConfigMaps. An object with a field of another type, and a
             pod without a UID, are in `bad`.
    Cost:    110 pods of 3 kB each: 2 ms as JSON, 210 ms as YAML.
    """
    found = _Found(config_map, any_namespace=any_namespace)
    for path, text in texts.items():
        for place, document in _documents(path, text):
            found.add(place, document, among_others=among_others)
    return found.manifests()


# What was found so far, by kind and key, each with its place in the files.
class _Found:
    def __init__(self, config_map: ConfigMapName, *, any_namespace: bool) -> None:
        self._config_map = config_map
        self._any_namespace = any_namespace
        self._others: list[str] = []  # ConfigMaps
        self._kept: dict[str, dict[str, tuple[str, Any]]] = {}
        self._bad: list[BadObject] = []

    def add(self, place: str, document: Any, *, among_others: bool) -> None:
        try:
            is_other = isinstance(document, dict) and document.get("kind") == "ConfigMap" and self._is_other(document)
            read = None if is_other else _read(place, document)
        except ConfigError as error:
            self._bad.append(_bad(document, error))
            return
        if read is not None:
            kind, key, value = read
            kept = self._kept.setdefault(kind, {})
            if key in kept:
                raise _conflict(kind, key, value, place, kept[key])
            kept[key] = (place, value)
        elif not among_others:
            raise _unknown(place, document, self._config_map)
        elif document.get("kind") == "ConfigMap":
            self._others.append(_namespaced(document))

    def _is_other(self, config_map: dict[str, Any]) -> bool:
        meta = config_map.get("metadata")
        if not isinstance(meta, dict) or meta.get("name") != self._config_map.name:
            return True
        return not self._any_namespace and meta.get("namespace") != self._config_map.namespace

    def _all(self, kind: str) -> tuple[Any, ...]:
        return tuple(value for _, value in self._kept.get(kind, {}).values())

    def _one(self, kind: str) -> Any:
        return next(iter(self._all(kind)), None)

    def manifests(self) -> Manifests:
        return Manifests(
            pods=self._all("Pod"),
            pdbs=self._all("PodDisruptionBudget") or None,
            node=self._one("Node"),
            nodeslo=self._one("NodeSLO"),
            slo_controller_config=self._one("ConfigMap"),
            topology=self._one("NodeResourceTopology"),
            namespaces=self._all("Namespace") or None,
            cnr=self._one("CustomNodeResource"),
            other_config_maps=tuple(self._others),
            bad=tuple(self._bad),
        )


# Its kind, what may be there once ("" where one of the kind may), and its value. None: it is of another kind.
def _read(place: str, document: Any) -> tuple[str, str, Any] | None:
    if not isinstance(document, dict):
        raise ConfigError(place, NOT_GIVEN, "must be an object")
    kind = document.get("kind")
    match kind, document.get("apiVersion"):
        case "Pod", "v1":
            pod = _convert(place, document, Pod)
            if not pod.uid:
                raise ConfigError(f"{place}.metadata.uid", pod.uid, f"pod {pod.key} must have a UID")
            return kind, pod.uid, pod
        case "PodDisruptionBudget", "policy/v1":
            pdb = _convert(place, document, PodDisruptionBudget)
            return kind, pdb.key, pdb
        case "Namespace", "v1":
            namespace = _convert(place, document, Namespace)
            return kind, namespace.metadata.name, namespace
        case "Node", "v1":
            return kind, "", _convert(place, document, Node)
        case "NodeSLO", str(version) if version == NODESLO_VERSION:
            return kind, "", _raw(place, document)
        case "NodeResourceTopology", str(version) if version == TOPOLOGY_VERSION:
            return kind, "", _convert(place, document, NodeResourceTopology)
        case "CustomNodeResource", str(version) if version == CNR_VERSION:
            return kind, "", _convert_cnr(place, document)
        case "ConfigMap", "v1":
            return kind, "", _convert(place, document, ConfigMap).data or {}
    return None


def _name(document: dict[str, Any]) -> Any:
    meta = document.get("metadata")
    return meta.get("name") if isinstance(meta, dict) else None


def _namespaced(document: dict[str, Any]) -> str:
    meta = document.get("metadata")
    words = (meta.get("namespace"), meta.get("name")) if isinstance(meta, dict) else ()
    return "/".join(each for each in words if isinstance(each, str))


def _unknown(place: str, document: dict[str, Any], config_map: ConfigMapName) -> ConfigError:
    kind, version = document.get("kind"), document.get("apiVersion")
    if (kind, version) == ("ConfigMap", "v1"):
        return ConfigError(
            f"{place}.metadata.name", f"ConfigMap {_namespaced(document)}".strip(), f"must be {config_map}"
        )
    return ConfigError(place, f"{version} {kind}", _KINDS)


def _bad(document: Any, error: ConfigError) -> BadObject:
    whole = document if isinstance(document, dict) else {}
    meta = whole.get("metadata")
    words = (whole.get("kind"), *(meta.get(each) if isinstance(meta, dict) else None for each in ("namespace", "name")))
    kind, namespace, name = (each if isinstance(each, str) else "" for each in words)
    return BadObject(kind, namespace, name, error.path, error.value, error.rule)


def _conflict(kind: str, key: str, value: Any, place: str, other: tuple[str, Any]) -> ConfigError:
    if not key:
        return ConfigError(place, kind, f"is there already in {other[0]}; one node has one")
    if kind == "Pod":
        return ConfigError(f"{place}.metadata.uid", key, f"pod {value.key} has the UID of {other[1].key} in {other[0]}")
    return ConfigError(f"{place}.metadata.name", key, f"is there already in {other[0]}")


def parse_documents(path: str, text: bytes) -> list[Any]:
    """Return what the text of a YAML or JSON file holds, document by document.

    Raises:  ConfigError: it is neither, or an object has a key twice.
    """
    try:
        # JSON is YAML too, but this reads it a hundred times as fast.
        if text.lstrip()[:1] == b"{":
            return [msgspec.json.decode(text)]
        return list(yaml.load_all(text, Loader=_Loader))
    except msgspec.DecodeError as e:
        raise json_error(path, text, e, rule="must be whole JSON") from e
    except RecursionError as e:
        raise ConfigError(path, NOT_GIVEN, "must keep to the maximum nesting depth") from e
    except (yaml.YAMLError, ValueError) as e:  # of which UnicodeDecodeError is one
        raise _yaml_error(path, text, e) from e


def _yaml_error(path: str, text: bytes, error: Exception) -> ConfigError:
    rule = "must be whole YAML"
    match error:
        case yaml.MarkedYAMLError(problem=str(problem), problem_mark=mark) if mark is not None:
            return ConfigError(f"{path}:{mark.line + 1}:{mark.column + 1}", NOT_GIVEN, f"{rule}: {problem}")
        case yaml.reader.ReaderError(position=int(offset), reason=str(problem)):
            return text_error(path, text, offset, f"{rule}: {problem}")
        case UnicodeDecodeError(start=offset):
            return text_error(path, text, offset, f"{rule}: it is no UTF-8")
    return ConfigError(path, NOT_GIVEN, f"{rule}: {' '.join(str(error).split())}")


# Each object with its place; an item of a list may be anything.
def _documents(path: str, text: bytes) -> Iterator[tuple[str, Any]]:
    documents = parse_documents(path, text)
    for number, document in enumerate(documents, start=1):
        if document is not None:  # `---` with nothing after it
            yield from _unfold(path if len(documents) == 1 else f"{path} document {number}", document)


def _unfold(place: str, document: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(document, dict):
        raise ConfigError(place, document, _KINDS)
    kind = document.get("kind")
    if not (isinstance(kind, str) and kind.endswith("List")):
        yield place, document
        return
    items = document.get("items")
    if items is None:
        items = []
    if not isinstance(items, list):
        raise ConfigError(f"{place}.items", items, "must be a list")
    for number, item in enumerate(items):
        inner = f"{place}.items[{number}]"
        if not isinstance(item, dict):
            yield inner, item
        # The API server leaves kind and version out of the items of a typed list.
        elif kind != "List":
            yield inner, {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List"), **item}
        else:
            yield from _unfold(inner, item)


def _convert(place: str, document: dict[str, Any], kind: type[T]) -> T:
    try:
        return convert(document, kind)
    except (msgspec.ValidationError, RecursionError) as e:
        name = _name(document)
        raise ConfigError(place, name if isinstance(name, str) else NOT_GIVEN, reason(e)) from e


def _convert_cnr(place: str, document: dict[str, Any]) -> CustomNodeResource:
    try:
        return bounded(_convert(place, document, CustomNodeResource))
    except (msgspec.ValidationError, RecursionError) as e:
        raise ConfigError(place, "CustomNodeResource", str(e)) from e


def _raw(place: str, document: dict[str, Any]) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(document))
    except (TypeError, RecursionError) as e:  # YAML reads a bare `on` as true, and knows what contains itself
        raise ConfigError(place, document.get("kind"), f"must be as JSON could have it, with text for keys: {e}") from e


def node_labels(path: str, text: bytes) -> dict[str, dict[str, str]]:
    """Return name → labels of every Node in the text of a YAML or JSON file.

    Raises:  ConfigError: neither YAML nor JSON, or it holds something else than Nodes.
    """
    labels: dict[str, dict[str, str]] = {}
    for place, document in _documents(path, text):
        kind = (document.get("apiVersion"), document.get("kind")) if isinstance(document, dict) else (None, None)
        if kind != ("v1", "Node"):
            raise ConfigError(place, f"{kind[0]} {kind[1]}", "must be a v1 Node")
        node = _convert(place, document, Node)
        labels[node.metadata.name] = node.metadata.labels or {}
    return labels
