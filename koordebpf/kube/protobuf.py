"""Messages of a gRPC service by a table of their fields: nothing is generated, and only what is used is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, tuple[int, str]]


def message_classes(package: str, messages: Mapping[str, Fields]) -> dict[str, Any]:
    """Return a class for each message.

    Args:
        package: as the .proto names it.
        messages: message → field → number and type; a type of the same table is a message, `*` is repeated. A map is a
            list of key and value on the wire.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"koordebpf-{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            label = kinds.LABEL_REPEATED if kind.startswith("*") else kinds.LABEL_OPTIONAL
            one = kind.lstrip("*")
            added = message.field.add(name=field, number=number, label=label, type=kinds.TYPE_MESSAGE)
            if one in messages:
                added.type_name = f".{package}.{one}"
            else:
                added.type = kinds.Type.Value(f"TYPE_{one.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
