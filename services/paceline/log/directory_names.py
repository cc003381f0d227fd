"""The directory names of current logs, future logs, deleted logs and logs set aside.

Source: docs/protocol/log-format.md#log-directory-names.
"""

import hashlib
import re
from collections.abc import Iterator

from paceline.log.files import Files, join
from paceline.model.errors import InvalidTopicError
from paceline.model.identifiers import TopicPartition, validate_topic_name

MAX_NAME_LENGTH = 255
DELETED = "delete"
"""Suffix of a deleted log whose files will be removed."""
DAMAGED = "damaged"
"""Suffix of a log that was set aside because its bytes differ from those written."""
FUTURE = "future"
"""Suffix of a log that is being copied from another log directory (KIP-113)."""
STRAY = "stray"
"""Suffix of a log that was set aside because its partition is assigned to other brokers or its topic was deleted."""
_BEING_DELETED = re.compile(r"(.+)\.[0-9a-f]{32}-delete")
_FUTURE = re.compile(r"(.+)\.[0-9a-f]{32}-future")
_SET_ASIDE = re.compile(r"(.+)\.[0-9a-f]{32}-(damaged|stray)")
_CURRENT = re.compile(r"(.+)-(0|[1-9][0-9]{0,9})")


def directory_name(tp: TopicPartition) -> str:
    """Return the name of the directory of a partition's current log: ``<topic>-<partition>``."""
    return f"{tp.topic}-{tp.partition}"


def parse_directory_name(name: str) -> TopicPartition | None:
    """Return the partition whose current log has this directory name, ``None`` for any other name.

    The name must be exactly the name that Paceline would give to the directory.
    """
    match = _CURRENT.fullmatch(name)
    if match is None or int(match[2]) > 2**31 - 1:
        return None
    try:
        validate_topic_name(match[1])
    except InvalidTopicError:
        return None
    return TopicPartition(match[1], int(match[2]))


def is_being_deleted(name: str) -> bool:
    """Whether a directory of this name holds a deleted log."""
    return _BEING_DELETED.fullmatch(name) is not None


def is_set_aside(name: str) -> bool:
    """Whether a directory of this name holds a damaged or stray log that is kept."""
    return _SET_ASIDE.fullmatch(name) is not None


def is_future(name: str) -> bool:
    """Whether a directory of this name holds a future log."""
    return _FUTURE.fullmatch(name) is not None


def parse_future_name(name: str) -> TopicPartition | None:
    """Return the partition whose future log has this directory name, ``None`` for any other name."""
    match = _FUTURE.fullmatch(name)
    return None if match is None else parse_directory_name(match[1])


def free_path(files: Files, log_dir: str, tp: TopicPartition, suffix: str, counter: Iterator[int]) -> str:
    """Return an unused path ``<topic>-<partition>.<32 hex>-<suffix>``; a long topic name is shortened to fit.

    The hexadecimal digits come from ``counter`` and not from a random source, so that test runs are repeatable.
    """
    while True:
        unique = hashlib.blake2s(f"{log_dir} {tp} {next(counter)}".encode(), digest_size=16).hexdigest()
        ending = f"-{tp.partition}.{unique}-{suffix}"
        path = join(log_dir, tp.topic[: MAX_NAME_LENGTH - len(ending)] + ending)
        if not files.exists(path):
            return path
