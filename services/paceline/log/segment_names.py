"""The names of a segment's files: base offset and suffix.

Source: docs/protocol/log-format.md#partition-files.
"""

import re
from typing import Final

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETED_SUFFIX = ".deleted"
"""Suffix of the files of a removed segment until they are deleted."""
SEGMENT_FILE: Final = re.compile(
    r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot|\.earlier-batches)(\.cleaned|\.swap|\.deleted)?"
)
"""Names of segment files and snapshots: the base offset, the suffix, and the suffix of a file that is not valid now."""
OTHER_FILES: Final = re.compile(r"(leader-epoch-checkpoint|partition\.metadata|known-damage|moved-from)(\.tmp)?")


def file_name(base_offset: int, suffix: str) -> str:
    """Return the name of a segment file: the base offset in 20 digits."""
    return f"{base_offset:020d}{suffix}"
