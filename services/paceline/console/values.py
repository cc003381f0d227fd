"""Bytes of records as text: plain text, JSON, a hex dump, or a Protobuf message of a given descriptor file. Pure."""

import json
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from paceline.model.errors import PacelineError

FORMS: Final = ("auto", "text", "json", "hex", "protobuf")
_PARSED_BYTES: Final = 4 << 20
"""Longest value that is parsed as JSON or Protobuf."""
_NESTED: Final = RecursionError
_PER_LINE: Final = 16


class DescriptorError(PacelineError):
    """A descriptor file does not describe the message."""


class Decoder:
    """Decodes the values of a topic as messages of one type."""

    def __init__(self, descriptors: bytes, message: str) -> None:
        """``descriptors`` is a serialized FileDescriptorSet, as of ``protoc --include_imports -o FILE``.

        Raises:
            DescriptorError: the bytes are something else, an import is missing, or the message is not in it.
        """
        pool = DescriptorPool()
        try:
            found = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        except DecodeError:
            raise DescriptorError("is not a descriptor file, as `protoc --include_imports -o FILE` writes it") from None
        try:
            for file in found.file:
                pool.Add(file)
            self._type: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
        except KeyError as error:
            known = [f"{file.package}.{one.name}".lstrip(".") for file in found.file for one in file.message_type]
            few = ", ".join(known[:8]) or "no messages"
            raise DescriptorError(f"does not describe {message}: {error.args[0]}; it has {few}") from None
        except TypeError as error:
            raise DescriptorError(f"lacks an import; add --include_imports to protoc: {error}") from None
        self._pool = pool
        self.message = message

    def text(self, data: bytes) -> str:
        """Return a message as JSON.

        Raises:
            ValueError: the bytes are not such a message.
        """
        try:
            message, pool = self._type.FromString(data), self._pool
            return json_format.MessageToJson(
                message, preserving_proto_field_name=True, descriptor_pool=pool, ensure_ascii=False
            )
        except (DecodeError, json_format.Error, TypeError, _NESTED) as error:
            raise ValueError(f"not a {self.message}: {error}") from None


@dataclass(frozen=True, slots=True)
class Text:
    """A key or a value as text."""

    text: str
    form: str
    """``null``, ``text``, ``json``, ``hex`` or ``protobuf``."""
    size: int
    """Bytes of the whole; 0 for null."""
    is_cut: bool = False
    problem: str = ""
    """Why it does not have the asked form."""


def as_text(data: bytes | None, form: str, limit: int, decoder: Decoder | None = None) -> Text:
    """Return bytes in one of `FORMS`, cut after about ``limit`` bytes.

    ``auto`` is Protobuf with a ``decoder``, otherwise JSON, otherwise text, otherwise hex. Bytes without the asked form
    are shown as text or hex, and say so.
    """
    if data is None:
        return Text("null", "null", 0)
    problem = ""
    if form == "protobuf" or (form == "auto" and decoder is not None):
        try:
            if decoder is None:
                raise ValueError("this topic has no descriptor file: --descriptors TOPIC=FILE.binpb:package.Message")
            return _cut(decoder.text(_parsable(data)), "protobuf", limit, data)
        except ValueError as error:
            problem, form = str(error), "hex"
    if form == "json" or (form == "auto" and data[:1] in (b"{", b"[")):
        try:
            pretty = json.dumps(json.loads(_parsable(data)), ensure_ascii=False, indent=2)
            return _cut(pretty, "json", limit, data)
        except (ValueError, _NESTED) as error:
            problem, form = (f"not JSON: {error}", "text") if form == "json" else ("", "auto")
    # A cut within a character must not make a text look like binary data.
    head = data[:limit]
    text = head.decode(errors="backslashreplace")
    if form == "hex" or (form == "auto" and not _is_text(data[: limit + 4], len(data) > limit + 4)):
        shown = max(limit // 4, _PER_LINE)
        return Text(_hex(head[:shown]), "hex", len(data), len(data) > shown, problem)
    return Text(_visible(text), "text", len(data), len(data) > limit, problem)


def _parsable(data: bytes) -> bytes:
    if len(data) > _PARSED_BYTES:
        raise ValueError(f"longer than {_PARSED_BYTES >> 20} MiB")
    return data


def _cut(text: str, form: str, limit: int, data: bytes) -> Text:
    return Text(_visible(text[:limit]), form, len(data), len(text) > limit)


def _is_text(data: bytes, is_cut: bool) -> bool:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(data) - 4:
            return False
        text = data[: error.start].decode()
    return all(one.isprintable() or one in "\n\r\t" for one in text)


def _visible(text: str) -> str:
    """Return a text without characters that hide or reverse others."""
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


def _hex(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), _PER_LINE):
        part = data[at : at + _PER_LINE]
        shown = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        lines.append(f"{at:06x}  {part.hex(' '):<47}  {shown}")
    return "\n".join(lines)
