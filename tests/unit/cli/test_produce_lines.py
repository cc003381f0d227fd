"""Lines of stdin that exceed a record take no memory, and an input without line ends is refused."""

import io
import tracemalloc

import pytest

from paceline.cli.produce import _ENDLESS_BYTES, _MAX_LINE_BYTES, _lines

LONGEST = b"x" * (_MAX_LINE_BYTES - 1) + b"\n"


@pytest.mark.parametrize("length", [_MAX_LINE_BYTES, 3 * _MAX_LINE_BYTES])
def test_a_line_too_long_for_a_record_is_skipped_and_the_next_one_is_read(length: int) -> None:
    text = b"a\n" + LONGEST + b"x" * length + b"\nb"
    assert list(_lines(io.BytesIO(text))) == [b"a\n", LONGEST, None, b"b"]


def test_a_last_line_too_long_for_a_record_is_skipped() -> None:
    assert list(_lines(io.BytesIO(b"x" * (2 * _MAX_LINE_BYTES)))) == [None]


def test_an_input_without_line_ends_is_not_kept_in_memory_and_ends() -> None:
    with open("/dev/full", "rb") as endless:
        tracemalloc.start()
        assert list(_lines(endless)) == [None]
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < 8 * _MAX_LINE_BYTES < _ENDLESS_BYTES
