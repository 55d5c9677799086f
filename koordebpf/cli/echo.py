"""The one door through which commands print: nothing that a tenant can name reaches a terminal as it is."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import Any

import click

from koordebpf.errors import OutputError


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text, to standard error with `err`; a pipe gets the same, since it may end at a terminal."""
    from koordebpf.printable import printable_text

    click.echo(printable_text(text), err=err, nl=nl)


def echo_object(name: str, value: Any, *, indent: int | None = None) -> None:
    """Print a value that is an object, with its schema as the first member."""
    from koordebpf.printable import json_bytes, with_schema

    echo_json(with_schema(name, json_bytes(value)), indent=indent)


def echo_json(value: Any, *, indent: int | None = None) -> None:
    """Print a value as JSON, on one line or indented; bytes are JSON already."""
    import msgspec

    from koordebpf.printable import json_bytes, plain_json

    raw = plain_json(value) if isinstance(value, bytes) else json_bytes(value)
    click.echo(msgspec.json.format(raw, indent=indent) if indent else raw)


class _Output(io.FileIO):
    # Its errors are not taken for those of other files, nor for a result. After one, what buffers hold is dropped.
    _is_broken = False

    def write(self, content: Any, /) -> int:
        if self._is_broken:
            return len(content)
        try:
            return super().write(content)
        except OSError as error:
            self._is_broken = True
            raise OutputError(error) from None


@contextlib.contextmanager
def checked_output() -> Iterator[None]:
    """Make standard output raise OutputError where it cannot be written, at the end of the block at the latest.

    One that is not the process's own, as in a test, is left as it is.
    """
    before = sys.__stdout__
    if before is None or before is not sys.stdout or before.closed:
        yield
        return
    buffer = io.BufferedWriter(_Output(before.fileno(), "wb", closefd=False))
    sys.stdout = checked = io.TextIOWrapper(buffer, before.encoding, before.errors, line_buffering=before.isatty())
    try:
        yield
    finally:
        sys.stdout = before
        checked.flush()


def echo_bytes(chunk: bytes) -> None:
    """Write bytes to standard output, which must be a file or a pipe.

    Raises:  click.UsageError: it is a terminal, which would obey them.
    """
    out = sys.stdout.buffer
    if sys.stdout.isatty():
        raise click.UsageError("this writes bytes: redirect standard output into a file")
    out.write(chunk)
    out.flush()
