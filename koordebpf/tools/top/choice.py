"""What a reader of `koordebpf top` wants to see, and how keys change it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from koordebpf.report.top import Level, Sort

LEVELS: tuple[Level, ...] = ("pod", "container", "cgroup")
KEYS: Mapping[str, Sort] = {"s": "stall", "u": "usage", "g": "growth", "t": "ttt", "n": "name"}
KEY_LINE = "(s)tall (u)sage (g)rowth (t)ime (n)ame le(v)el t(r)ee (l)edger /filter ? (q)uit"
REPLAY_KEY_LINE = "t/T round  j/J minute  d/D decision  (s)(u)(g)(n) le(v)el t(r)ee (l)edger / ? (q)uit"
_PAGE = 10
_MOST_FILTER = 80


class Choice(Struct, frozen=True):
    """What a reader wants to see.

    `tree`      rows below what they are part of: containers below pods, cgroups below cgroups.
    `filter`    only rows with this text in their name, whatever the case; `typing`: keys are added to it.
    `selected`  the row that is marked, of those that are shown; −1: none.
    `detail`    the name of the row that alone is shown; None: the table is.
    """

    sort: Sort = "usage"
    level: Level = "pod"
    ledger: bool = False
    stop: bool = False
    tree: bool = False
    help: bool = False
    filter: str = ""
    typing: bool = False
    selected: int = -1
    detail: str | None = None


def pressed(choice: Choice, key: str, names: Sequence[str] = ()) -> Choice:
    """Return what is to be seen after a key; one that means nothing changes nothing.

    Args:
        choice: before it.
        key: a character, or `up`, `down`, `page up`, `page down`, `home`, `end`, `enter`, `escape`, `backspace`.
        names: of the rows that are shown, in their order.
    """
    if key in ("\x03", "\x04"):
        return replace(choice, stop=True)
    if choice.typing:
        return _typed(choice, key)
    match key:
        case "q":
            return replace(choice, stop=True)
        case "?":
            return replace(choice, help=not choice.help)
        case "/":
            return replace(choice, typing=True, filter="", help=False, detail=None, ledger=False, selected=-1)
        case "escape" | "backspace":
            return _left(choice)
        case "l":
            return replace(choice, ledger=not choice.ledger, detail=None, help=False)
        case "r":
            return replace(choice, tree=not choice.tree, ledger=False, detail=None, selected=-1)
        case "v":
            level = LEVELS[(LEVELS.index(choice.level) + 1) % len(LEVELS)]
            return replace(choice, level=level, ledger=False, detail=None, selected=-1)
        case "enter" if names and not choice.ledger:
            return replace(choice, detail=names[min(max(choice.selected, 0), len(names) - 1)], help=False)
    if (place := _moved(choice.selected, key, len(names))) is not None:
        return replace(choice, selected=place)
    return replace(choice, sort=KEYS[key], ledger=False, detail=None) if key in KEYS else choice


def _typed(choice: Choice, key: str) -> Choice:
    match key:
        case "enter":
            return replace(choice, typing=False)
        case "escape":
            return replace(choice, typing=False, filter="")
        case "backspace":
            return replace(choice, filter=choice.filter[:-1])
    if len(key) == 1 and key.isprintable() and len(choice.filter) < _MOST_FILTER:
        return replace(choice, filter=choice.filter + key)
    return choice


# What was opened last is closed first.
def _left(choice: Choice) -> Choice:
    if choice.help:
        return replace(choice, help=False)
    if choice.detail is not None:
        return replace(choice, detail=None)
    return replace(choice, ledger=False, filter="", selected=-1)


def _moved(selected: int, key: str, count: int) -> int | None:
    steps = {"up": -1, "down": 1, "page up": -_PAGE, "page down": _PAGE, "home": -count, "end": count}
    if key not in steps or not count:
        return None
    return min(max(selected + steps[key], 0), count - 1)


def matches(choice: Choice, name: str) -> bool:
    """Tell whether the filter lets a row pass."""
    return choice.filter.casefold() in name.casefold()
