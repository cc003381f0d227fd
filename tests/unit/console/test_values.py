"""Bytes of records as text, JSON, hex and Protobuf; nothing of it can hide or reverse other text."""

import pytest
from google.protobuf import descriptor_pb2

from paceline.console.values import Decoder, DescriptorError, as_text

NESTED = b"[" * 100_000


def descriptors(with_import: bool = False) -> bytes:
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="order_id", number=1, type=5, label=1)
    message.field.add(name="who", number=2, type=9, label=1)
    if with_import:
        file.dependency.append("missing.proto")
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


DECODER = Decoder(descriptors(), "shop.Order")


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (None, "null", "null"),
        (b"", "text", ""),
        ("Zürich\n".encode(), "text", "Zürich\n"),
        (b'{"a":[1]}', "json", '{\n  "a": [\n    1\n  ]\n}'),
        (b"{not json", "text", "{not json"),
        (b"\x00\xff", "hex", "000000  00 ff                                            .."),
        ("a\u202eb".encode(), "hex", None),
        (NESTED, "text", None),
    ],
)
def test_auto_chooses_a_form_that_fits(data: bytes | None, form: str, text: str | None) -> None:
    found = as_text(data, "auto", 1_000)
    assert found.form == form
    assert text is None or found.text == text


def test_a_cut_in_the_middle_of_a_character_does_not_make_a_text_binary() -> None:
    found = as_text("ä".encode() * 1_000, "auto", 101)
    assert (found.form, found.is_cut, found.size) == ("text", True, 2_000)
    assert found.text.startswith("ääää") and len(found.text) < 120


def test_ten_mebibytes_are_cut_and_their_size_is_told() -> None:
    for data in (b"x" * (10 << 20), b"\x00" * (10 << 20), b'["' + b"x" * (10 << 20) + b'"]'):
        found = as_text(data, "auto", 1_024)
        assert found.is_cut and found.size == len(data) and len(found.text) < 5_000


def test_bytes_without_the_asked_form_say_so() -> None:
    assert as_text(b"{", "json", 100).problem.startswith("not JSON")
    assert as_text(NESTED, "json", 100).problem.startswith("not JSON")
    assert as_text(b"{}", "protobuf", 100).problem.startswith("this topic has no descriptor file")
    assert as_text(b"\xff\xff", "auto", 100, DECODER).problem.startswith("not a shop.Order")


def test_text_shows_control_and_direction_characters_as_escapes() -> None:
    assert as_text("a\x1b[2J\u202eb".encode(), "text", 100).text == "a\\x1b[2J\\u202eb"
    assert as_text(b"\xff<b>", "text", 100).text == "\\xff<b>"


def test_a_message_is_shown_with_the_names_of_its_fields() -> None:
    found = as_text(b"\x08\x07\x12\x02\xc3\xa9", "auto", 100, DECODER)
    assert (found.form, found.text) == ("protobuf", '{\n  "order_id": 7,\n  "who": "é"\n}')


@pytest.mark.parametrize(
    ("data", "message", "told"),
    [
        (b"\xff", "shop.Order", "is not a descriptor file"),
        (descriptors(), "shop.Missing", "it has shop.Order"),
        (descriptors(with_import=True), "shop.Order", "--include_imports"),
    ],
)
def test_a_wrong_descriptor_file_is_refused_with_the_reason(data: bytes, message: str, told: str) -> None:
    with pytest.raises(DescriptorError, match=told):
        Decoder(data, message)
