"""The tables of `kube.clients.protobuf` as classes of the library protobuf, for servers of tests and for comparison."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from koordebpf.kube.clients.protobuf import Messages


def message_classes(package: str, messages: Messages) -> dict[str, Any]:
    """Return a class for each message."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"koordebpf-{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            label = kinds.LABEL_REPEATED if kind.startswith("*") else kinds.LABEL_OPTIONAL
            one = kind.lstrip("*?")
            added = message.field.add(name=field, number=number, label=label, type=kinds.TYPE_MESSAGE)
            if kind.startswith("?"):
                message.oneof_decl.add(name=f"_{field}")
                added.proto3_optional, added.oneof_index = True, len(message.oneof_decl) - 1
            if one in messages:
                added.type_name = f".{package}.{one}"
            else:
                added.type = kinds.Type.Value(f"TYPE_{one.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
