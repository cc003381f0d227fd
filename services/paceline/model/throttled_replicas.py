"""Lists of replicas with throttled replication: topic keys ``*.replication.throttled.replicas``.

A list is ``partition:broker,partition:broker,...``, or ``*`` for every replica of the topic, or empty. Source:
KIP-73.
"""

import re
from typing import Final

ALL_REPLICAS: Final = "*"
_ENTRY: Final = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")


def checked_throttled_replicas(text: str) -> str:
    """Check a list and return it without blanks.

    Raises:
        ValueError: the text is not such a list.
    """
    entries = _entries(text)
    if entries == [ALL_REPLICAS]:
        return ALL_REPLICAS
    for entry in entries:
        if _ENTRY.fullmatch(entry) is None:
            raise ValueError(f"{entry!r} is not partition:broker; expected a list of such entries, or *")
    return ",".join(entries)


def throttled_partitions(text: str, broker_id: int) -> frozenset[int] | None:
    """Return the partitions listed for a broker; None means all partitions of the topic."""
    entries = _entries(text)
    if entries == [ALL_REPLICAS]:
        return None
    matches = (_ENTRY.fullmatch(entry) for entry in entries)
    return frozenset(int(match[1]) for match in matches if match is not None and int(match[2]) == broker_id)


def _entries(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
