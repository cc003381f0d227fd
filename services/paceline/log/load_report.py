"""Report the findings of loading the log directories, and whether acknowledged records may be missing.

Source: docs/protocol/log-format.md#unclean-restart.
"""

from dataclasses import dataclass, field

from paceline.model.identifiers import TopicPartition

UNCLEAN_RESTART = "unclean-restart"
"""Stands in the boot id's place from an unclean restart until a controller has taken note of it."""


@dataclass(slots=True)
class DirectoryReport:
    """Findings of loading one log directory."""

    path: str
    clean_shutdown: bool = False
    stored_boot_id: str | None = None
    """Boot id of the kernel when the directory was last known to be whole, ``None`` when there was none."""
    recovered: list[TopicPartition] = field(default_factory=list)
    """Logs whose batches had to be checked."""
    truncated_bytes: dict[TopicPartition, int] = field(default_factory=dict)
    """Bytes cut per log, where any were."""
    lost_batches: list[TopicPartition] = field(default_factory=list)
    """Logs of which whole batches were cut; the end of an append that was interrupted was never acknowledged."""
    is_new: bool = False
    """Whether it has never been used: no mark of a start or of a cluster, and no log."""
    quarantined: list[str] = field(default_factory=list)
    """Names that mean nothing to us: left alone, never followed."""
    damaged: list[str] = field(default_factory=list)
    """Files that could not be parsed and were done without."""
    set_aside: list[str] = field(default_factory=list)
    """Damaged and stray logs, kept until an operator removes them."""
    error: Exception | None = None
    """Why the directory is offline."""

    def may_lack_records(self, boot_id: str) -> bool:
        """Whether records may be missing that were acknowledged; a directory that failed is another matter."""
        if self.is_new or self.error is not None:
            return False
        if self.stored_boot_id == UNCLEAN_RESTART:
            # A later stop was clean, but the controller has not been told of the earlier loss.
            return True
        return not self.clean_shutdown and (self.stored_boot_id != boot_id or bool(self.lost_batches))


@dataclass(slots=True)
class LoadReport:
    """Findings of loading all log directories."""

    directories: list[DirectoryReport] = field(default_factory=list)

    @property
    def clean_shutdown(self) -> bool:
        """Whether every directory was stopped cleanly."""
        return all(directory.clean_shutdown for directory in self.directories)

    @property
    def recovered(self) -> list[TopicPartition]:
        """Logs whose batches had to be checked."""
        return [tp for directory in self.directories for tp in directory.recovered]

    @property
    def truncated_bytes(self) -> int:
        """Bytes cut from all logs."""
        return sum(sum(directory.truncated_bytes.values()) for directory in self.directories)

    @property
    def quarantined(self) -> list[str]:
        """Paths that were left alone."""
        return [name for directory in self.directories for name in directory.quarantined]

    def is_unclean_restart(self, boot_id: str) -> bool:
        """Whether acknowledged records may be missing: there is no clean-stop marker, and either the machine was
        restarted or recovery cut whole batches. A directory that was never used has no records to miss."""
        return any(directory.may_lack_records(boot_id) for directory in self.directories)
