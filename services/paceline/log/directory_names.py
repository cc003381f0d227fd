"""The names of logs in a log directory: current, being deleted, set aside.

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
"""Suffix of a log whose files are to be removed."""
DAMAGED = "damaged"
"""Suffix of a log that was set aside because its bytes differ from those written."""
STRAY = "stray"
"""Suffix of a log that was set aside because no controller knows of it."""
_BEING_DELETED = re.compile(r"(.+)\.[0-9a-f]{32}-delete")
_FUTURE = re.compile(r"(.+)\.[0-9a-f]{32}-future")
_SET_ASIDE = re.compile(r"(.+)\.[0-9a-f]{32}-(damaged|stray)")
_CURRENT = re.compile(r"(.+)-(0|[1-9][0-9]{0,9})")


def parse_directory_name(name: str) -> TopicPartition | None:
    """Return the partition whose current log has this directory name, ``None`` when the name is not one.

    The name must be exactly the name Paceline would give.
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
    """Whether a directory of this name holds the copy of a log that is being moved between directories (KIP-113)."""
    return _FUTURE.fullmatch(name) is not None


def free_path(files: Files, log_dir: str, tp: TopicPartition, suffix: str, counter: Iterator[int]) -> str:
    """Return a free path ``<topic>-<partition>.<32 hex>-<suffix>`` in ``log_dir``, the topic cut so that the name fits.

    ``counter`` makes names differ; no chance is in them, so that a run can be repeated.
    """
    while True:
        unique = hashlib.blake2s(f"{log_dir} {tp} {next(counter)}".encode(), digest_size=16).hexdigest()
        ending = f"-{tp.partition}.{unique}-{suffix}"
        path = join(log_dir, tp.topic[: MAX_NAME_LENGTH - len(ending)] + ending)
        if not files.exists(path):
            return path
