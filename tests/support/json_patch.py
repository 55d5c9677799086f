"""RFC 6902 as the API server applies it, written apart from what makes patches."""

from __future__ import annotations

import copy
import json
from typing import Any


def applied(document: Any, patch: bytes) -> Any:
    """Return the document after the patch; a path that is not there is an error, as at the API server."""
    document = copy.deepcopy(document)
    for operation in json.loads(patch):
        *steps, last = [
            step.replace("~1", "/").replace("~0", "~") for step in operation["path"].removeprefix("/").split("/")
        ]
        below = document
        for step in steps:
            below = below[int(step)] if isinstance(below, list) else below[step]
        match operation["op"], below:
            case "add", list():
                assert 0 <= int(last) <= len(below), operation
                below.insert(int(last), operation["value"])
            case "add", dict():
                below[last] = operation["value"]
            case "replace", list():
                below[int(last)] = operation["value"]
            case "replace", dict():
                assert last in below, operation
                below[last] = operation["value"]
            case "remove", list():
                del below[int(last)]
            case "remove", dict():
                del below[last]
            case _:
                raise AssertionError(operation)
    return document
