"""Where in the text of a YAML or JSON file something stands that turned out to be wrong."""

from __future__ import annotations

import re

import yaml

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def position(text: bytes, path: str) -> tuple[int, int] | None:
    """Return line and column, both from 1, of the field at a path such as `eviction.ladder[0].rung`.

    Of a path that leads further than the text does it is the last field that is there; None: not even the first is.

    Cost:    that of reading the YAML once more; only for who reports an error.

    >>> position(b"a: 1\nb:\n  - c: 2\n", "b[0].c")
    (3, 5)
    """
    try:
        node = yaml.compose(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    found: yaml.Node | None = None
    for name, index in _STEP.findall(path):
        if isinstance(node, yaml.MappingNode) and name:
            found, node = next(((key, value) for key, value in node.value if key.value == name), (found, None))
        elif isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
            found = node = node.value[int(index)]
        else:
            node = None
        if node is None:
            break
    return None if found is None else (found.start_mark.line + 1, found.start_mark.column + 1)
