"""Records of the batches that a log or a broker returns."""

from collections.abc import Iterator

from paceline.log.record_batch import Buffer, Record, decode_batch, iterate_headers


def decode_records(data: Buffer) -> Iterator[Record]:
    """Yield the records of all complete batches in ``data``, except those of control batches."""
    for position, header in iterate_headers(data):
        if not header.is_control:
            yield from decode_batch(data[position : position + header.size])
