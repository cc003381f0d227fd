"""`Credits`: how many records and bytes of a stream may be delivered and not yet acknowledged."""

from collections.abc import Sequence
from typing import Final

from paceline.model.errors import InvalidRequestError

MAX_CREDIT: Final = 2**31 - 1
DEFAULT_RECORDS: Final = 1_000
DEFAULT_BYTES: Final = 8 * 1024 * 1024
MESSAGE_BYTES: Final = 1024 * 1024
"""Bytes of records in one message; by default a gRPC client refuses messages above 4 MiB."""


class Credits:
    """The credit of one stream; `take` uses it, `give_back` returns it."""

    def __init__(self, records: int = DEFAULT_RECORDS, size: int = DEFAULT_BYTES) -> None:
        """Create the credit.

        Raises:
            InvalidRequestError: a limit is not from 1 to 2147483647.
        """
        for name, limit in (("credit_records", records), ("credit_bytes", size)):
            if not 1 <= limit <= MAX_CREDIT:
                raise InvalidRequestError(f"{name} must be from 1 to {MAX_CREDIT}, not {limit}")
        self._records = records
        self._bytes = size
        self.records_used = 0
        self.bytes_used = 0

    def count_that_fits(self, sizes: Sequence[int]) -> int:
        """Return how many of the next records may be delivered in a message; a record above the limit fits alone."""
        room = min(self._records - self.records_used, len(sizes))
        if room <= 0:
            return 0
        left = min(self._bytes - self.bytes_used, MESSAGE_BYTES)
        for index in range(room):
            left -= sizes[index]
            if left < 0:
                return max(index, not self.records_used)
        return room

    def take(self, records: int, size: int) -> None:
        """Use credit for delivered records."""
        self.records_used += records
        self.bytes_used += size

    def give_back(self, records: int, size: int) -> None:
        """Return the credit of records that were acknowledged, or that the stream may no longer acknowledge."""
        self.records_used -= records
        self.bytes_used -= size
        assert self.records_used >= 0 and self.bytes_used >= 0
