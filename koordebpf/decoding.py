"""JSON of Kubernetes objects and annotations as values. An explicit null is an absent field, as in Kubernetes.

The API server and kubectl take `nodeName: null`, and custom resources keep what was written. So each type that is read
from Kubernetes is decoded here and nowhere else.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Generic, TypeVar, overload

import msgspec

T = TypeVar("T")
Text = bytes | bytearray | memoryview | str | msgspec.Raw
_NULL: Final = "got `null`"  # in every sentence of msgspec on a null that its type does not take


class Decoder(Generic[T]):
    """Decodes one type. Text without a null at a field that takes none costs what msgspec costs."""

    __slots__ = ("_json",)

    def __init__(self, kind: Any) -> None:
        self._json: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def decode(self, text: Text) -> T:
        """Return the value. Of a list a null item stays, and is one that the type has to take.

        Raises:  msgspec.DecodeError: a field that is read has another type, or is required and absent or null.
                 UnicodeDecodeError, RecursionError: as of msgspec.
        """
        try:
            return self._json.decode(text)
        except msgspec.ValidationError as error:
            if _NULL not in str(error):
                raise
        return self._json.decode(msgspec.json.encode(without_nulls(msgspec.json.decode(text))))


@overload
def decoder(kind: type[T]) -> Decoder[T]: ...
@overload
def decoder(kind: Any) -> Decoder[Any]: ...
def decoder(kind: Any) -> Decoder[Any]:
    """Return the decoder of a type, always the same one."""
    return _made(kind)


@cache
def _made(kind: Any) -> Decoder[Any]:
    return Decoder(kind)


def convert(document: Any, kind: type[T]) -> T:
    """Return a decoded document, of YAML too, as a value of a type.

    Raises:  msgspec.ValidationError: as of `Decoder.decode`. RecursionError: it is nested too deep.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        if _NULL not in str(error):
            raise
    return msgspec.convert(without_nulls(document), kind)


def without_nulls(value: Any) -> Any:
    """Return it without the entries of objects that are null, at every depth; items of lists stay."""
    match value:
        case dict():
            return {key: without_nulls(each) for key, each in value.items() if each is not None}
        case list():
            return [without_nulls(each) for each in value]
    return value
