"""Names out of a round's JSON, by keyed hashes. Pure; a name has the same hash wherever it is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

# Objects of Kubernetes: fields of which the value is a name, and maps of which keys and values are.
_NAMES = frozenset({"name", "namespace", "uid", "nodeName", "containerID", "workload", "ownPodUid", "container", "key"})
_MAPS = frozenset({"labels", "annotations", "matchLabels", "nodeSelector"})
_LISTS = frozenset({"values", "refused", "killed", "namespaces"})  # of names, where they hold strings
_PATHS = frozenset({"path", "cgroupPath", "hostPath"})
# What policy reads stays: keys of these domains with their values, and of the others' labels the key.
_KEPT_DOMAINS = frozenset({"koordinator.sh", "node.koordinator.sh", "katalyst.kubewharf.io"})
_KEPT_VALUES = frozenset({"kubernetes.io/arch", "kubernetes.io/os", "kubernetes.io/config.source"})
_KEPT_CLASSES = re.compile(r"system-(node|cluster)-critical|koord-(prod|mid|batch|free)")
_KEPT_PARTS = re.compile(
    r"|sys|fs|cgroup|proc|dev|run|var|tmp|kubepods(-besteffort|-burstable)?(\.slice)?|besteffort|burstable|system\.slice"
    r"|user\.slice|init\.scope|(cpu|cpuset|cpuacct|memory|io|blkio|pids|cgroup|hugetlb|net_cls)(\.[a-z0-9_.]+)?"
)
_UID = re.compile(r"[0-9a-f]{8}([-_])[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}|\b[0-9a-f]{32,64}\b")
_DISTINCT = 6  # characters of a name that is looked for within sentences
_MAX_SEEN = 100_000  # strings of which the answer is remembered


class Names:
    """Replaces names. `key` keeps others from trying out what a hash may stand for."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._hashes: dict[str, str] = {}
        self._seen: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def learn(self, value: Any) -> None:
        """Take note of every name of an object, so that it is found within sentences and keys too."""
        known = len(self._hashes)
        self._walk(value, None)
        if len(self._hashes) != known:
            self._seen.clear()
            self._pattern = None

    def redacted(self, value: Any) -> Any:
        """Return a value of JSON without the names that are in it."""
        return self._walk(value, None)

    def text(self, text: str) -> str:
        """Return a sentence, a key or a path with the known names and every UID in it replaced."""
        found = self._seen.get(text)
        if found is None:
            if len(self._seen) >= _MAX_SEEN:
                self._seen.clear()
            found = _UID.sub(lambda match: self._uid(match[0]), text)
            found = self._known().sub(lambda match: self._hashes[match[0]], found)
            self._seen[text] = found
        return found

    def _walk(self, value: Any, field: str | None) -> Any:
        if isinstance(value, dict):
            if field in _MAPS:
                return {self._label_key(key): self._label_value(key, each) for key, each in value.items()}
            if field == "sloControllerConfig":
                return {key: self._json_text(each) for key, each in value.items()}
            return {self.text(key): self._walk(each, key) for key, each in value.items()}
        if isinstance(value, list):
            inner = "name" if field in _LISTS else field
            return [self._walk(each, inner) for each in value]
        if not isinstance(value, str) or not value:
            return value
        if field in _NAMES:
            return "/".join(map(self._name, value.split("/")))
        if field in _PATHS:
            return "/".join(map(self._part, value.split("/")))
        if field == "priorityClassName":
            return value if _KEPT_CLASSES.fullmatch(value) else self._name(value)
        return self.text(value)

    def _name(self, name: str) -> str:
        if not name or name in ("*", "v1", "Pod"):
            return name
        if _UID.fullmatch(name):
            return self._uid(name)
        found = self._hashes.get(name)
        if found is None:
            found = f"n{self._digest(name)[:10]}"
            self._hashes[name] = found
            self._hashes[found] = found  # what is redacted already stays
            self._seen.clear()
            self._pattern = None
        return found

    # Of the same form, since kubelet's cgroups have it in their names, also with _ for -.
    def _uid(self, uid: str) -> str:
        if not {"-", "_"} & set(uid):
            return self._hashes.get(uid) or self._keep(uid, self._digest(uid).ljust(len(uid), "0")[: len(uid)])
        plain = uid.replace("_", "-")
        digest = self._hashes.get(plain)
        if digest is None:
            hexed = self._digest(plain)[:32]
            parts = (hexed[:8], hexed[8:12], hexed[12:16], hexed[16:20], hexed[20:])
            digest = self._keep(plain, "-".join(parts))
        return digest.replace("-", "_") if "_" in uid else digest

    def _keep(self, name: str, digest: str) -> str:
        self._hashes[name] = self._hashes[digest] = digest
        return digest

    def _digest(self, name: str) -> str:
        return hashlib.blake2b(name.encode(), key=self._key, digest_size=32).hexdigest()

    def _part(self, part: str) -> str:
        if _KEPT_PARTS.fullmatch(part):
            return part
        replaced = self.text(part)
        return replaced if replaced != part else self._name(part)

    def _label_key(self, key: str) -> str:
        domain = key.rpartition("/")[0]
        is_public = domain in _KEPT_DOMAINS or domain.endswith(("kubernetes.io", "k8s.io"))
        return key if is_public else self._name(key)

    def _label_value(self, key: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if key.rpartition("/")[0] in _KEPT_DOMAINS or key in _KEPT_VALUES:
            return self.text(value)
        return self._name(value)

    def _json_text(self, text: Any) -> Any:
        try:
            return msgspec.json.encode(self._walk(msgspec.json.decode(text), None)).decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
            return self._name(text) if isinstance(text, str) else text

    def _known(self) -> re.Pattern[str]:
        if self._pattern is None:
            self._pattern = _alternatives(self._hashes)
        return self._pattern


def _alternatives(hashes: Mapping[str, str]) -> re.Pattern[str]:
    names: Iterable[str] = (name for name, found in hashes.items() if len(name) >= _DISTINCT and name != found)
    found = sorted((re.escape(name) for name in names if "-" in name or any(map(str.isdigit, name))), key=len)[::-1]
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(found)})(?![A-Za-z0-9])") if found else re.compile(r"(?!)")
