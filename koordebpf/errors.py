"""Every error koordebpf raises on purpose.

Anything else that escapes is a bug and shows a traceback. At start-up each of these ends the process with `exit_code`
and a message whose last sentence says what to do; in the running agent it ends the tick.
"""

from __future__ import annotations

from typing import ClassVar


class KoordebpfError(Exception):
    """The root of the tree; `exit_code` is the process's when it is fatal."""

    exit_code: ClassVar[int] = 1


class ConfigError(KoordebpfError):
    """A value given by a person is unusable: names its path, the value and the rule."""

    exit_code = 2

    def __init__(self, path: str, value: object, rule: str) -> None:
        super().__init__(f"{path}: {value!r}: {rule}")
        self.path = path
        self.value = value
        self.rule = rule


class SupportError(KoordebpfError):
    """This host lacks something: names the feature, why it failed and how to get it."""

    exit_code = 3

    def __init__(self, feature: str, reason: str, remedy: str) -> None:
        super().__init__(f"{feature}: {reason}. {remedy}")
        self.feature = feature
        self.reason = reason
        self.remedy = remedy


class CgroupGone(KoordebpfError):
    """The cgroup was removed while it was read; an expected race."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: the cgroup is gone")
        self.path = path


class KernelFileError(KoordebpfError):
    """A procfs, sysfs or cgroupfs file holds what its format does not allow."""

    def __init__(self, path: str, value: str, rule: str) -> None:
        super().__init__(f"{path}: {value[:80]!r}: {rule}")
        self.path = path
        self.value = value
        self.rule = rule


class DecodeError(KoordebpfError):
    """A record, from the kernel or of a service, does not have its layout."""


class ActuationError(KoordebpfError):
    """An action on the node was tried and failed."""


class KubeError(KoordebpfError):
    """The API server or kubelet could not be asked or answered with an error.

    `retry` tells whether the same request may succeed later.
    """

    def __init__(self, message: str, *, retry: bool = True) -> None:
        super().__init__(message)
        self.retry = retry


class KubeSilent(KubeError):
    """A watch said nothing for longer than it may."""


class KubeTooLarge(KubeError):
    """An answer has more bytes than the caller accepts; not retried as it was."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry=False)


class KubeBusy(KubeError):
    """The server asks to come back later (429, 503); `retry_after_s` is None where it did not say when.

    Hours are not believed: who reads an answer cuts it to five minutes.
    """

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(message, retry=True)
        self.retry_after_s = retry_after_s


class KubeDenied(KubeError):
    """401 or 403: names the verb and resource that RBAC has to allow. Not retried.

    `by_policy` RBAC allows it, and an admission policy does not; the message has its reason.
    """

    def __init__(self, message: str, verb: str, resource: str, *, by_policy: bool = False) -> None:
        super().__init__(message, retry=False)
        self.by_policy = by_policy
        self.verb = verb
        self.resource = resource


class KubeGone(KubeError):
    """404, 409 by UID precondition, 410, or a namespace that ends: what was meant does not exist any more."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, retry=False)
        self.status = status


class KubeConflict(KubeError):
    """409: another wrote meanwhile, or an object of that name is there already (then `retry` is false)."""
