"""`DirectoryRetry`: load a log directory that has failed once more, while the broker runs.

Source: docs/protocol/replication.md#log-directories.
"""

import errno
from typing import Final

from paceline.log.directory_loader import DirectoryLoader, TopicSettings
from paceline.log.directory_names import is_future, parse_directory_name
from paceline.log.files import FileLock, Files, join, read_all
from paceline.log.future_logs import MOVED_FROM
from paceline.log.load_report import DirectoryReport
from paceline.log.log_directory import LogDirectory
from paceline.model.errors import KafkaStorageError

_PROBE: Final = ".paceline-probe"
_PROBE_BYTES: Final = bytes(range(256)) * 16


class DirectoryRetry:
    """`run` may run on any thread; then the owner of the logs calls `LogManager.finish_retry`."""

    def __init__(
        self, files: Files, directory: LogDirectory, lock_file: str, loader: DirectoryLoader, boot_id: str
    ) -> None:
        """``directory`` is new; ``loader`` has no logs yet."""
        self._files = files
        self.directory = directory
        self._lock_file = lock_file
        self.loader = loader
        self._boot_id = boot_id
        self.lock: FileLock | None = None

    def run(self, settings: TopicSettings) -> None:
        """Check the file system, lock the directory and load its logs, as after a crash.

        Raises:
            KafkaStorageError: one of these failed, or only a restart can use the directory: it may lack records that
                this broker has acknowledged, which a restart tells the controller, or has a move that is not finished.
        """
        path = self.directory.path
        report = DirectoryReport(path)
        try:
            check_file_system(self._files, path)
            self.lock = self._files.lock(join(path, self._lock_file))
            if self.lock is None:
                raise KafkaStorageError(f"log directory {path} is locked")
            if any(self._is_moving(name) for name, _kind in self._files.list_directory(path)):
                raise KafkaStorageError(f"restart the broker to use {path}: moves are not finished")
            self.loader.load(self.directory, report, settings)
            if self.directory.failure is not None or report.may_lack_records(self._boot_id):
                raise KafkaStorageError(f"log directory {path} may lack records: restart the broker to use it")
        except (OSError, KafkaStorageError) as error:
            self.give_up()
            raise error if isinstance(error, KafkaStorageError) else KafkaStorageError(f"{path}: {error}") from error
        self.directory.load_completed = True

    def _is_moving(self, name: str) -> bool:
        is_log = parse_directory_name(name) is not None
        return is_future(name) or (is_log and self._files.exists(join(self.directory.path, f"{name}/{MOVED_FROM}")))

    def give_up(self) -> None:
        """Release the directory."""
        if self.lock is not None:
            self.lock.release()


def check_file_system(files: Files, path: str) -> None:
    """Write, sync, read and delete a file.

    Raises:
        OSError: one of these failed.
    """
    probe = join(path, _PROBE)
    files.create(probe)
    files.append(probe, _PROBE_BYTES)
    files.sync(probe)
    if read_all(files, probe) != _PROBE_BYTES:
        raise OSError(errno.EIO, "the file system returns other bytes than were written", probe)
    files.remove(probe)
    files.sync_directory(path)
