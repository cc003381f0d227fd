"""Report the findings of loading the log directories, and whether acknowledged records may be missing.

Source: docs/protocol/log-format.md#unclean-restart.
"""

from dataclasses import dataclass, field

from paceline.model.identifiers import TopicPartition

UNCLEAN_RESTART = "unclean-restart"
"""Value of the boot id file from an unclean restart until the controller has acknowledged it."""


@dataclass(slots=True)
class DirectoryReport:
    """Findings of loading one log directory."""

    path: str
    clean_shutdown: bool = False
    stored_boot_id: str | None = None
    """Content of the boot id file: the boot id at the last start that lost no records, or `UNCLEAN_RESTART`.

    ``None`` when the file was missing.
    """
    recovered: list[TopicPartition] = field(default_factory=list)
    """Logs that were recovered: their batches were checked."""
    truncated_bytes: dict[TopicPartition, int] = field(default_factory=dict)
    """Bytes removed by recovery, by log; only truncated logs."""
    lost_batches: list[TopicPartition] = field(default_factory=list)
    """Logs that lost whole batches; an interrupted append does not count, because it was never acknowledged."""
    is_new: bool = False
    """Whether the directory was never used: it has no boot id file, no ``meta.properties`` and no log."""
    quarantined: list[str] = field(default_factory=list)
    """Paths with unknown names, which are ignored and never followed."""
    damaged: list[str] = field(default_factory=list)
    """Files that could not be parsed; they were rebuilt or left out."""
    set_aside: list[str] = field(default_factory=list)
    """Damaged and stray logs, kept until an operator removes them."""
    error: Exception | None = None
    """Storage error that took the directory offline, ``None`` while it is online."""

    def may_lack_records(self, boot_id: str) -> bool:
        """Whether acknowledged records may be missing; False for a directory that is offline or was never used."""
        if self.is_new or self.error is not None:
            return False
        if self.stored_boot_id == UNCLEAN_RESTART:
            # A later stop may have been clean, but the controller does not know of the earlier loss.
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
        """Logs that were recovered: their batches were checked."""
        return [tp for directory in self.directories for tp in directory.recovered]

    @property
    def truncated_bytes(self) -> int:
        """Bytes removed by recovery from all logs."""
        return sum(sum(directory.truncated_bytes.values()) for directory in self.directories)

    def is_unclean_restart(self, boot_id: str) -> bool:
        """Whether acknowledged records may be missing in a directory.

        They may be missing if there was no clean-stop marker and either the machine was restarted or recovery removed
        whole batches, or if an earlier unclean restart was not acknowledged. A directory that was never used does not
        count.
        """
        return any(directory.may_lack_records(boot_id) for directory in self.directories)
