r"""Text as it may reach a terminal, a log or an Event: without anything that would be obeyed instead of shown.

Tenants name what we print: processes, pods, containers, cgroups, images, annotations, and in their mistakes the
answers of servers. An escape sequence in such a name sets the title of an operator's terminal, clears it or types into
it; a carriage return or a newline forges a line; bidirectional controls show other names than there are.

Every text passes through here where it leaves the process, and before it is cut or aligned.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any, Final

import msgspec

# As JSON may hold them unescaped: DEL, C1 controls, and what controls the direction or the end of a line.
_RAW_IN_JSON: Final = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_VERSIONS: Final = {"plan": 2, "replayed-plan": 2}  # of every other object without a `schema` of its own it is 1


def printable(text: str) -> str:
    r"""Return the text as one line that a terminal only shows.

    Controls become `\xNN`, format characters, line separators, surrogates and unassigned ones `\u{…}`; letters of any
    script and spaces of any width stay. What was returned once is returned unchanged.

    >>> printable("\x1b]0;pwn\x07 web\r\n\u202egpj.sh \udc80")
    '\\x1b]0;pwn\\x07 web\\x0d\\x0a\\u{202e}gpj.sh \\u{dc80}'
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_text(text: str) -> str:
    """Return the text with its lines as they are, each of them printable."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def page(lines: Iterable[str]) -> str:
    """Return the lines as one text; a newline within one of them is shown, and begins no other."""
    return "\n".join(map(printable, lines))


def json_bytes(value: Any, enc_hook: Any = None) -> bytes:
    r"""Return the value as JSON that a terminal only shows, and that says the same to a reader of JSON.

    A name that is no UTF-8 is in it as `printable` shows it: JSON cannot say it.

    >>> json_bytes({"comm": "a\x9b2J", "cgroup": "\udcff"})
    b'{"comm":"a\\u009b2J","cgroup":"\\\\u{dcff}"}'
    """
    try:
        raw = msgspec.json.encode(value, enc_hook=enc_hook)
    except UnicodeEncodeError:
        raw = msgspec.json.encode(_without_surrogates(msgspec.to_builtins(value, str_keys=True, enc_hook=enc_hook)))
    return plain_json(raw)


def plain_json(raw: bytes) -> bytes:
    """Return the same JSON with the characters escaped that would be obeyed."""
    if raw.isascii() and b"\x7f" not in raw:
        return raw
    return _RAW_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", raw.decode()).encode()


def with_schema(name: str, raw: bytes) -> bytes:
    """Return a JSON object with `schema`, which says what object of ours it is, as its first member.

    >>> with_schema("pod", b'{"a":1}'), with_schema("pod", b"{}")
    (b'{"schema":"koordebpf.pod/v1","a":1}', b'{"schema":"koordebpf.pod/v1"}')
    """
    return b'{"schema":"%s"%s%s' % (schema_name(name).encode(), b"" if raw == b"{}" else b",", raw[1:])


def schema_name(name: str) -> str:
    """Return what the `schema` of an object of ours says: what it is, and in which version."""
    return f"koordebpf.{name}/v{_VERSIONS.get(name, 1)}"


def _shown(char: str) -> str:
    if char.isprintable() or unicodedata.category(char) == "Zs":
        return char
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{{{ord(char):x}}}"


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return "".join(_shown(char) if "\ud800" <= char <= "\udfff" else char for char in value)
        case dict():
            return {_without_surrogates(key): _without_surrogates(each) for key, each in value.items()}
        case list() | tuple():
            return [_without_surrogates(each) for each in value]
    return value
