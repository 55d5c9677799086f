"""Kubernetes objects out of the text of YAML or JSON files. Pure: text in, values out, or one error."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec
import yaml

from koordebpf.errors import NOT_GIVEN, ConfigError, json_error, text_error
from koordebpf.kube.cache.cnr import CNR_VERSION, CustomNodeResource, bounded
from koordebpf.kube.cache.objects import ConfigMap, Namespace, Node, NodeResourceTopology, Pod, PodDisruptionBudget

CONFIG_NAME: Final = "slo-controller-config"
NODESLO_VERSION: Final = "slo.koordinator.sh/v1alpha1"
TOPOLOGY_VERSION: Final = "topology.node.k8s.io/v1alpha1"
_KINDS: Final = (
    "must be Pod, Node, NodeSLO, NodeResourceTopology, CustomNodeResource, PodDisruptionBudget, Namespace,"
    " ConfigMap slo-controller-config or a List of them"
)


T = TypeVar("T")


class Manifests(msgspec.Struct, frozen=True):
    """All objects of a set of files. None: no file has one. What a PodDisruptionBudget allows is in its status."""

    pods: tuple[Pod, ...] = ()
    pdbs: tuple[PodDisruptionBudget, ...] | None = None
    node: Node | None = None
    nodeslo: msgspec.Raw | None = None
    slo_controller_config: dict[str, str] | None = None
    topology: NodeResourceTopology | None = None
    namespaces: tuple[Namespace, ...] | None = None  # for their labels
    cnr: CustomNodeResource | None = None


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


def parse_manifests(texts: Mapping[str, bytes], *, among_others: bool = False) -> Manifests:
    """Return the objects of all files, given as text by path; everything or nothing.

    With `among_others` objects of other kinds are passed over: what is applied with kubectl has a Service, too.

    Raises:  ConfigError: a file is neither YAML nor JSON, an object has a wrong type or an unknown kind, a pod has
             no UID or the same as another, a PodDisruptionBudget or Namespace the name of another, or there are two
             Nodes, NodeSLOs, NodeResourceTopologies, CustomNodeResources or ConfigMaps.
    Cost:    110 pods of 3 kB each: 2 ms as JSON, 210 ms as YAML.
    """
    found = _Found()
    for path, text in texts.items():
        for place, document in _documents(path, text):
            found.add(place, document, among_others=among_others)
    return found.manifests()


# What was found so far, by key, each with its place in the files.
class _Found:
    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, Pod]] = {}
        self._pdbs: dict[str, tuple[str, PodDisruptionBudget]] = {}
        self._namespaces: dict[str, tuple[str, Namespace]] = {}
        self._single: dict[str, tuple[str, Any]] = {}  # of which a node has one, by kind

    def add(self, place: str, document: dict[str, Any], *, among_others: bool) -> None:
        kind = document.get("kind")
        match kind, document.get("apiVersion"):
            case "Pod", "v1":
                self._keep_pod(place, _convert(place, document, Pod))
            case "PodDisruptionBudget", "policy/v1":
                pdb = _convert(place, document, PodDisruptionBudget)
                _keep(self._pdbs, pdb.key, place, pdb)
            case "Namespace", "v1":
                namespace = _convert(place, document, Namespace)
                _keep(self._namespaces, namespace.metadata.name, place, namespace)
            case "Node", "v1":
                self._keep_single("Node", place, _convert(place, document, Node))
            case "NodeSLO", str(version) if version == NODESLO_VERSION:
                self._keep_single("NodeSLO", place, _raw(place, document))
            case "NodeResourceTopology", str(version) if version == TOPOLOGY_VERSION:
                self._keep_single("NodeResourceTopology", place, _convert(place, document, NodeResourceTopology))
            case "CustomNodeResource", str(version) if version == CNR_VERSION:
                self._keep_single("CustomNodeResource", place, _convert_cnr(place, document))
            case "ConfigMap", "v1":
                meta = document.get("metadata")
                name = meta.get("name") if isinstance(meta, dict) else meta
                if name == CONFIG_NAME:
                    self._keep_single("ConfigMap", place, _convert(place, document, ConfigMap).data or {})
                elif not among_others:
                    raise ConfigError(f"{place}.metadata.name", name, f"the only ConfigMap read is {CONFIG_NAME}")
            case _, version if not among_others:
                raise ConfigError(place, f"{version} {kind}", _KINDS)

    def _keep_pod(self, place: str, pod: Pod) -> None:
        if not pod.uid:
            raise ConfigError(f"{place}.metadata.uid", pod.uid, f"pod {pod.key} must have a UID")
        if pod.uid in self._pods:
            other_place, other = self._pods[pod.uid]
            raise ConfigError(
                f"{place}.metadata.uid", pod.uid, f"pod {pod.key} has the UID of {other.key} in {other_place}"
            )
        self._pods[pod.uid] = (place, pod)

    def _keep_single(self, kind: str, place: str, value: object) -> None:
        if kind in self._single:
            raise ConfigError(place, kind, f"is there already in {self._single[kind][0]}; one node has one")
        self._single[kind] = (place, value)

    def manifests(self) -> Manifests:
        single = {kind: value for kind, (_, value) in self._single.items()}
        return Manifests(
            pods=tuple(pod for _, pod in self._pods.values()),
            pdbs=tuple(pdb for _, pdb in self._pdbs.values()) or None,
            node=single.get("Node"),
            nodeslo=single.get("NodeSLO"),
            slo_controller_config=single.get("ConfigMap"),
            topology=single.get("NodeResourceTopology"),
            namespaces=tuple(each for _, each in self._namespaces.values()) or None,
            cnr=single.get("CustomNodeResource"),
        )


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


def _keep(kept: dict[str, tuple[str, T]], key: str, place: str, value: T) -> None:
    if key in kept:
        raise ConfigError(f"{place}.metadata.name", key, f"is there already in {kept[key][0]}")
    kept[key] = (place, value)


def _documents(path: str, text: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    documents = parse_documents(path, text)
    for number, document in enumerate(documents, start=1):
        if document is not None:  # `---` with nothing after it
            yield from _unfold(path if len(documents) == 1 else f"{path} document {number}", document)


def _unfold(place: str, document: Any) -> Iterator[tuple[str, dict[str, Any]]]:
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
            raise ConfigError(inner, item, "must be an object")
        # The API server leaves kind and version out of the items of a typed list.
        if kind != "List":
            yield inner, {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List"), **item}
        else:
            yield from _unfold(inner, item)


def _convert(place: str, document: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as e:
        name = document.get("metadata") or {}
        raise ConfigError(place, name.get("name") if isinstance(name, dict) else name, str(e)) from e


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
        if (document.get("apiVersion"), document.get("kind")) != ("v1", "Node"):
            raise ConfigError(place, f"{document.get('apiVersion')} {document.get('kind')}", "must be a v1 Node")
        node = _convert(place, document, Node)
        labels[node.metadata.name] = node.metadata.labels or {}
    return labels
