"""Convert protobuf messages to typed columns, by descriptors from ``protoc --include_imports --descriptor_set_out``.

| Field | Column |
|---|---|
| bool, int32, sint32, sfixed32, float, double, string, bytes | the same |
| int64, sint64, sfixed64, uint32, fixed32 | long |
| uint64, fixed64 | long; above 2^63 - 1 a dead letter |
| enum | string: the name, or the number when the schema has no name for it |
| google.protobuf.Timestamp | timestamp |
| repeated of the above | list |
| message, map | string: JSON |

A field with presence that is not set is null.
"""

import base64
import json
import math
from collections.abc import Callable
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, unknown_fields
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from paceline.model.errors import InvalidConfigError
from paceline.pipeline.jobs.values.columns import ValueColumn
from paceline.pipeline.jobs.values.parser import BadValueError

_MAX_INT64: Final = (1 << 63) - 1
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_MIN_SECONDS, _MAX_SECONDS = -62_135_596_800, 253_402_300_799
"""Years 1 to 9999, the range of the well-known type and of Spark."""

_TYPES: Final = {
    FieldDescriptor.TYPE_BOOL: "boolean",
    FieldDescriptor.TYPE_INT32: "int",
    FieldDescriptor.TYPE_SINT32: "int",
    FieldDescriptor.TYPE_SFIXED32: "int",
    FieldDescriptor.TYPE_UINT32: "long",
    FieldDescriptor.TYPE_FIXED32: "long",
    FieldDescriptor.TYPE_INT64: "long",
    FieldDescriptor.TYPE_SINT64: "long",
    FieldDescriptor.TYPE_SFIXED64: "long",
    FieldDescriptor.TYPE_UINT64: "long",
    FieldDescriptor.TYPE_FIXED64: "long",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "binary",
    FieldDescriptor.TYPE_ENUM: "string",
}


class ProtobufParser:
    """Parses values that are messages of a given type."""

    def __init__(self, descriptor_set: bytes, message: str, allow_unknown: bool = False) -> None:
        """Load the descriptors.

        Args:
            descriptor_set: a serialized FileDescriptorSet with every import.
            message: full name of the type, for example ``shop.v1.Order``.
            allow_unknown: accept messages with fields that are not in the schema; otherwise they are dead letters,
                because a message of another type can often be parsed and then has such fields.

        Raises:
            InvalidConfigError: the descriptors are incomplete or lack the message.
        """
        descriptor = _find(descriptor_set, message)
        self._class = message_factory.GetMessageClass(descriptor)
        self._allow_unknown = allow_unknown
        self._fields = [(field, _converter(field)) for field in descriptor.fields]
        self._columns = tuple(_column(field) for field in descriptor.fields)
        names = [column.name.lower() for column in self._columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidConfigError(f"{message}: the columns {', '.join(twice)} differ only by case")

    @property
    def columns(self) -> tuple[ValueColumn, ...]:
        return self._columns

    def parse(self, value: bytes | None) -> list[Any]:
        """Return one entry per field.

        Raises:
            BadValueError: the value is null, empty or incomplete, has unknown fields, or a number out of range.
        """
        if value is None:
            raise BadValueError("null-value", "the value is null")
        if not value:
            raise BadValueError("empty-value", "the value is empty")
        message = self._class()
        try:
            message.ParseFromString(value)
        except DecodeError as error:
            raise BadValueError("invalid-protobuf", str(error)) from error
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())  # type: ignore[attr-defined]
            raise BadValueError("missing-field", f"required fields are missing: {missing}")
        if not self._allow_unknown and (unknown := _unknown_numbers(message)):
            raise BadValueError("unknown-field", f"fields {unknown[:8]} are not in the schema")
        return [
            None if field.has_presence and not message.HasField(field.name) else convert(getattr(message, field.name))
            for field, convert in self._fields
        ]


def _find(descriptor_set: bytes, message: str) -> Descriptor:
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file
    except DecodeError as error:
        raise InvalidConfigError("the descriptor set is not a serialized FileDescriptorSet") from error
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except (KeyError, TypeError) as error:
        raise InvalidConfigError(
            f"the descriptor set has no message {message}, or lacks an import: write it with "
            f"protoc --include_imports --descriptor_set_out ({error})"
        ) from error


def _unknown_numbers(message: Any) -> list[int]:
    fields: Any = unknown_fields.UnknownFieldSet(message)
    return sorted({field.field_number for field in fields})


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _is_repeated(field: FieldDescriptor) -> bool:
    # Newer protobuf releases have `is_repeated` and deprecate `label`, which older ones need.
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated) and not _is_map(field)
    label = field.label  # type: ignore[attr-defined]
    return bool(label == FieldDescriptor.LABEL_REPEATED) and not _is_map(field)


def _column(field: FieldDescriptor) -> ValueColumn:
    if field.message_type is not None and field.message_type.full_name == _TIMESTAMP:
        return ValueColumn(field.name, "timestamp", True, _is_repeated(field))
    if field.message_type is not None:
        return ValueColumn(field.name, "json", True)
    return ValueColumn(field.name, _TYPES[field.type], True, _is_repeated(field))


def _converter(field: FieldDescriptor) -> Callable[[Any], Any]:
    if _is_map(field):
        return _map_converter(field)
    if field.message_type is not None and field.message_type.full_name != _TIMESTAMP:
        return (
            (lambda found: _to_json([_plain(each) for each in found]))
            if _is_repeated(field)
            else (lambda found: _to_json(_plain(found)))
        )
    one = _scalar_converter(field)
    return (lambda found: [one(each) for each in found]) if _is_repeated(field) else one


def _map_converter(field: FieldDescriptor) -> Callable[[Any], Any]:
    assert field.message_type is not None
    entry = field.message_type.fields_by_name
    key_of, value_of = (
        (lambda found: _text(field.name, found)) if entry[name].type == FieldDescriptor.TYPE_STRING else _plain
        for name in ("key", "value")
    )
    return lambda entries: _to_json({str(key_of(key)): value_of(value) for key, value in entries.items()})


def _scalar_converter(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return lambda found: _micros(field.name, found)
    if field.type in (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64):
        return lambda found: _signed(field.name, found)
    if field.type == FieldDescriptor.TYPE_STRING:
        return lambda found: _text(field.name, found)
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return lambda found: names.get(found, str(found))
    return lambda found: found


def _text(name: str, found: str | bytes) -> str:
    """Return the string of a field; a proto2 string that is not UTF-8 is parsed as bytes."""
    if isinstance(found, bytes):
        raise BadValueError("invalid-utf8", f"the field {name!r} is not UTF-8")
    return found


def _signed(name: str, number: int) -> int:
    if number > _MAX_INT64:
        raise BadValueError("out-of-range", f"the field {name!r} does not fit 64 bits with a sign")
    return number


def _micros(name: str, found: Any) -> int:
    if not (_MIN_SECONDS <= found.seconds <= _MAX_SECONDS and 0 <= found.nanos < 1_000_000_000):
        raise BadValueError("out-of-range", f"the timestamp {name!r} lies outside the years 1 to 9999")
    return int(found.seconds * 1_000_000 + found.nanos // 1_000)


def _plain(found: Any) -> Any:
    """Return a value that JSON can represent; bytes become base64 as in protobuf's JSON form."""
    if hasattr(found, "DESCRIPTOR"):
        _check_texts(found)
        try:
            return json_format.MessageToDict(found, preserving_proto_field_name=True)
        except (ValueError, TypeError, RecursionError) as error:
            raise BadValueError("invalid-protobuf", f"no JSON form: {error}") from error
    if isinstance(found, bytes):
        return base64.b64encode(found).decode("ascii")
    if isinstance(found, float) and not math.isfinite(found):
        return "NaN" if math.isnan(found) else "Infinity" if found > 0 else "-Infinity"
    return found


def _check_texts(message: Any) -> None:
    """Refuse a string that is not UTF-8 at any depth; protobuf's JSON form would contain it as a Python literal."""
    for field, found in message.ListFields():
        if _is_map(field):
            entry = field.message_type.fields_by_name
            inside = [(entry["key"], each) for each in found] + [(entry["value"], each) for each in found.values()]
        else:
            inside = [(field, each) for each in (found if _is_repeated(field) else [found])]
        for each_field, each in inside:
            if each_field.type == FieldDescriptor.TYPE_STRING:
                _text(each_field.name, each)
            elif each_field.message_type is not None:
                _check_texts(each)


def _to_json(found: Any) -> str:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
