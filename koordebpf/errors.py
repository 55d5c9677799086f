"""Every error koordebpf raises on purpose.

Anything else that escapes is a bug and shows a traceback. At start-up each of these ends the process with `exit_code`
and a message whose last sentence says what to do; in the running agent it ends the tick.
"""

from __future__ import annotations

import errno
import re
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    import msgspec


class _NotGiven(Enum):
    NOT_GIVEN = ""


NOT_GIVEN: Final = _NotGiven.NOT_GIVEN  # in place of the value of a ConfigError that has none to show
_AT = re.compile(r" - at `\$(?P<place>[^`]*)`$")  # at the end of what msgspec says of a value of another type
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_OFFSET = re.compile(r" \(byte (\d+)\)$")  # at the end of what msgspec says of malformed JSON


class KoordebpfError(Exception):
    """The root of the tree; `exit_code` is the process's when it is fatal."""

    exit_code: ClassVar[int] = 1


class OutputError(KoordebpfError):
    """Standard output cannot be written. `is_closed`: its reader has ended, as `head` does, which is no fault."""

    exit_code = 74  # EX_IOERR of sysexits.h

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output: {os_reason(error)}; what was not written is lost")
        self.is_closed = error.errno == errno.EPIPE


class ConfigError(KoordebpfError):
    """A value given by a person is unusable: names its path, the value and the rule.

    Without a value, `NOT_GIVEN`, it names path and rule.
    """

    exit_code = 2

    def __init__(self, path: str, value: object, rule: str) -> None:
        super().__init__(f"{path}: {rule}" if value is NOT_GIVEN else f"{path}: {value!r}: {rule}")
        self.path = path
        self.value = value
        self.rule = rule


class KernelProblem(KoordebpfError):
    """Something that the kernel shows cannot be read: it is gone, not there, or odd.

    Who reads many of a kind, as cgroups, leaves that one out.
    """


class SupportError(KernelProblem):
    """This host lacks something: names the feature, why it failed and how to get it."""

    exit_code = 3

    def __init__(self, feature: str, reason: str, remedy: str) -> None:
        super().__init__(f"{feature}: {reason}. {remedy}")
        self.feature = feature
        self.reason = reason
        self.remedy = remedy


class CgroupGone(KernelProblem):
    """The cgroup was removed while it was read; an expected race."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: the cgroup is gone")
        self.path = path


class KernelFileError(KernelProblem):
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

    Hours are not believed: who reads an answer cuts it to five minutes, and adds up to a quarter at random.
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


def text_error(path: str, raw: bytes, offset: int, rule: str, *, first_line: int = 1) -> ConfigError:
    """Return the error of a byte of a text, as PATH:LINE:COLUMN; both count from 1, columns in characters."""
    before = raw[:offset]
    line = before.count(b"\n") + first_line
    column = len(before[before.rfind(b"\n") + 1 :].decode(errors="replace")) + 1
    return ConfigError(f"{path}:{line}:{column}", NOT_GIVEN, rule)


def json_error(
    path: str, raw: bytes, error: Exception, *, rule: str = "must be JSON", first_line: int | None = None
) -> ConfigError:
    """Return the error of text that a decoder refused as JSON, with its place where the decoder names one.

    `first_line` is the number that the text's first line has in its file: of a file of lines, each is a text.

    >>> str(json_error("a.json", b'{"a": 1,\\n x}', ValueError("JSON is malformed: object keys (byte 10)")))
    'a.json:2:2: must be JSON: object keys'
    """
    said, offset = str(error), 0
    if isinstance(error, UnicodeDecodeError):
        said, offset = "it is no UTF-8", error.start
    elif found := _OFFSET.search(said):
        said, offset = said[: found.start()].removeprefix("JSON is malformed: "), int(found[1])
    elif "truncated" in said:
        said, offset = "it ends too early", len(raw)
    elif first_line is None:
        return ConfigError(path, NOT_GIVEN, f"{rule}: {said}")
    return text_error(path, raw, offset, f"{rule}: {said}", first_line=first_line or 1)


def unreadable(path: object, error: OSError) -> ConfigError:
    """Return the error of a file that cannot be read, in the system's words."""
    return ConfigError(str(path), NOT_GIVEN, os_reason(error))


def os_reason(error: OSError) -> str:
    """Return why a system call failed, in the system's words; what Python says of a failure without a number."""
    return error.strerror or str(error)


def errno_name(error: OSError) -> str:
    """Return the name of an error's number, such as EACCES."""
    return errno.errorcode.get(error.errno or 0, str(error))


def type_error(path: str, raw: bytes, error: msgspec.ValidationError) -> ConfigError:
    """Return the error of JSON that is of another type: it names the place in it, the value there and the rule."""
    import msgspec  # a command's help has no need of it

    rule, place = rule_and_place(error)
    try:
        value: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = raw[:60].decode(errors="replace")
    for name, index in _STEP.findall(place):
        try:
            value = value[name] if name else value[int(index)]
        except (KeyError, IndexError, TypeError):
            break
    shown = value if not isinstance(value, dict | list) else f"{str(value)[:60]}…"
    return ConfigError(f"{path}: {place.lstrip('.') or 'frame'}", shown, rule)


def rule_and_place(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return what msgspec says, and where: ".pods[0].uid", "" for the whole.

    Where a decoder called another one the places follow each other, the inner one first.
    """
    message, place = str(error), ""
    while found := _AT.search(message):
        message, place = message[: found.start()], place + found["place"]
    return message, place
