"""Where the kubelet's cgroups begin: given, or learned once. A `kubepods` directory anywhere else names no pod. Pure.

A process that may make cgroups may name one `kubepods` and lay out pods of any UID below it: a container with a
writable cgroup file system, a service with cgroups of its own, a second kubelet in a container (kind).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set

import msgspec

_MAX_OTHERS = 64
_MAX_PROBLEMS = 4  # Why: a tenant may make thousands, and a person reads the first ones
_SHOWN = 96  # characters of a path that a tenant may choose
_SETTING = "--cgroup-root (node.cgroupRoot)"


class Kubepods(msgspec.Struct, frozen=True):
    """One directory `kubepods` or `*kubepods.slice`, by its path below the node's root."""

    root: str  # as `root_of`
    path: str


def root_of(path: str) -> str | None:
    """Return the kubelet's --cgroup-root, without its first slash, that has kubepods at `path`; None: no kubelet would.

    Source:  pkg/kubelet/cm/cgroup_manager_linux.go: with the systemd driver /a/b is a.slice/a-b.slice.

    >>> root_of("kubelet/kubepods"), root_of("kubelet.slice/kubelet-kubepods.slice"), root_of("kubepods.slice")
    ('kubelet', 'kubelet', '')
    >>> root_of("any.service/kubelet-kubepods.slice") is None
    True
    """
    *above, name = path.split("/")
    if name == "kubepods":
        return "/".join(above)
    levels = name.removesuffix("kubepods.slice").split("-")[:-1]
    slices = ["-".join(levels[: end + 1]) + ".slice" for end in range(len(levels))]
    at = len(above) - len(levels)
    return "/".join([*above[:at], *levels]) if at >= 0 and above[at:] == slices else None


def kubepods_paths(root: str) -> tuple[str, str]:
    """Return the paths at which a kubelet with this --cgroup-root has its pods: cgroupfs driver, systemd driver.

    Source:  pkg/kubelet/cm/cgroup_manager_linux.go: escapeSystemdCgroupName turns `-` into `_`.

    >>> kubepods_paths("/"), kubepods_paths("/my-pods")
    (('kubepods', 'kubepods.slice'), ('my-pods/kubepods', 'my_pods.slice/my_pods-kubepods.slice'))
    """
    levels = [level for level in root.split("/") if level]
    names = [level.replace("-", "_") for level in levels]
    slices = ["-".join(names[: end + 1]) + ".slice" for end in range(len(names))]
    return "/".join([*levels, "kubepods"]), "/".join([*slices, "-".join([*names, "kubepods.slice"])])


class KubeletRoot:
    """Which of the `kubepods` directories that are there is the kubelet's.

    While it is not known each of them counts; `learn` settles it, once. Both drivers' directories of one root count.

    Args:
        given: the kubelet's --cgroup-root; None: it is learned.

    Attributes:
        own_pod_uid: of the pod that this agent runs in, which the kubelet's own directory has; None: of none.
        expected: what an agent before this one had learned.
    """

    def __init__(self, given: str | None = None) -> None:
        self.own_pod_uid: str | None = None
        self.expected: str | None = None
        self._given = given
        self._roots: frozenset[str | None] = frozenset()  # those that count; none: not known yet
        if given is not None:
            self._roots = frozenset(map(root_of, kubepods_paths(given)))
        self._counting: dict[int, Kubepods] = {}
        self._others: dict[int, Kubepods] = {}
        self._problems: tuple[str, ...] | None = None  # None: to be worked out again

    @property
    def is_given(self) -> bool:
        """Whether it is a setting, and not learned."""
        return self._given is not None

    @property
    def is_known(self) -> bool:
        """Whether it is given or was learned."""
        return bool(self._roots)

    @property
    def path(self) -> str | None:
        """The root as the kubelet's setting spells it, "/" or "/custom"; None: not known yet."""
        if self._given is not None or not self._roots:
            return self._given
        (root,) = self._roots
        return f"/{root}"

    @property
    def counting(self) -> tuple[Kubepods, ...]:
        """The kubelet's directories; while it is not known which these are, all. By depth."""
        return _by_depth(self._counting)

    @property
    def ids(self) -> Set[int]:
        """The cgroups of those that count."""
        return self._counting.keys()

    @property
    def others(self) -> tuple[Kubepods, ...]:
        """The directories that do not count, at most 64 of them. By depth."""
        return _by_depth(self._others)

    def is_kubepods(self, cgroup_id: int, path: str) -> bool:
        """Take in a directory that bears such a name, by its path below the node's root; tell whether it counts."""
        root = root_of(path) if path else ""  # the node itself may be the kubelet's directory
        if root is None:
            return False
        counts = not self._roots or root in self._roots
        if counts or len(self._others) < _MAX_OTHERS:
            (self._counting if counts else self._others)[cgroup_id] = Kubepods(root, path)
            self._problems = None
        return counts

    def forget(self, cgroup_id: int) -> None:
        """Leave a directory out; another cgroup changes nothing."""
        if self._counting.pop(cgroup_id, None) or self._others.pop(cgroup_id, None):
            self._problems = None

    def learn(self, pods: Mapping[int, Collection[str]]) -> tuple[int, ...]:
        """Take the root that has pods of the list; return the directories to take in again, which count no more.

        Of several it is the one with the agent's own pod, then the one that an agent before this one had learned, then
        the one nearest to the node's root: who has a tree of its own has it below a cgroup of its own.

        Args:
            pods: id of a directory → metadata.uid of those pods of the list that have a cgroup below it.
        """
        if self._roots or not pods:
            return ()

        def order(cgroup_id: int) -> tuple[bool, bool, int, str]:
            root = self._counting[cgroup_id].root
            depth = root.count("/") + bool(root)
            return self.own_pod_uid not in pods[cgroup_id], f"/{root}" != self.expected, depth, root

        self._roots = frozenset([self._counting[min(pods, key=order)].root])
        self._problems = None
        return tuple(each for each, kubepods in self._counting.items() if kubepods.root not in self._roots)

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences on a given root without kubepods and on kubepods elsewhere; at most some."""
        if self._problems is None:
            self._problems = tuple(self._sentences())
        return self._problems

    def _sentences(self) -> Iterator[str]:
        if self._given is not None and not self._counting:
            yield f"{self.missing()}. {self.remedy()}"
        paths = {each.root: each.path for each in reversed(self.others)}
        shown = sorted(paths, key=lambda root: (root.count("/"), root))[:_MAX_PROBLEMS]
        for root in shown:
            yield (
                f"{_shown(paths[root])} is not below the kubelet's cgroup root {self.path}: no cgroup in it counts as a"
                f" pod's. If it is the kubelet's, set {_SETTING} to {_shown(f'/{root}')}"
            )
        if len(paths) > len(shown):
            yield f"{len(paths) - len(shown)} more directories called kubepods are not below it and do not count"

    def missing(self) -> str:
        """Return what is not there, the given root being one without kubepods."""
        paths = " nor ".join(kubepods_paths(self._given or "/"))
        return f"--cgroup-root {self._given}: there is neither {paths}, so no pod has a cgroup and none is evicted"

    def remedy(self) -> str:
        """Return what to do about that."""
        roots = list(dict.fromkeys(_shown(f"/{each.root}") for each in self.others))
        seen = f"; there is one below {', '.join(roots[:_MAX_PROBLEMS])}" if roots else ""
        return f"Start the kubelet, set {_SETTING} to the kubelet's own, or leave it out to have it learned{seen}"


def _by_depth(found: Mapping[int, Kubepods]) -> tuple[Kubepods, ...]:
    return tuple(sorted(found.values(), key=lambda each: (each.path.count("/"), each.path)))


def _shown(path: str) -> str:
    return path if len(path) <= _SHOWN else f"{path[:_SHOWN]}…"
