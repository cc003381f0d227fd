"""`DirectoryRetries`: load failed log directories again in the background, one attempt at a time for each.

Source: docs/protocol/replication.md#log-directories.
"""

import logging
from functools import partial
from typing import Final

from paceline.broker.control.stray_logs import set_returned_strays_aside
from paceline.broker.interfaces import BackgroundWork
from paceline.broker.replica_manager import ReplicaManager
from paceline.log.directory_retry import DirectoryRetry

LOG: Final = logging.getLogger(__name__)


class DirectoryRetries:
    """The attempts to take directories of this broker back."""

    def __init__(self, manager: ReplicaManager, background: BackgroundWork) -> None:
        self._manager = manager
        self._background = background
        self._attempts: dict[str, Exception | None] = {}
        """The error of the last attempt for each directory that is offline, None while the attempt runs."""

    def retry(self, log_dir: str, is_repeated: bool) -> bool:
        """Begin an attempt if none runs; return whether the directory is being loaded, False when it is online.

        ``is_repeated``, of a caller that waits for the end of an attempt, reports the last attempt and begins none.

        Raises:
            LogDirNotFoundError: there is no such directory.
            KafkaStorageError: the last attempt has failed.
        """
        error = self._attempts.get(log_dir)
        if error is not None and is_repeated:
            raise error.with_traceback(None)
        if log_dir in self._attempts and error is None:
            return True
        retry = self._manager.logs.begin_retry(log_dir)
        if retry is None:
            return False
        # A failed checkpoint alone has not taken the replicas offline, and they would keep the logs that are replaced.
        self._manager.storage.take_failed_dirs_offline()
        self._attempts[log_dir] = None
        settings = self._manager.hosted.topic_configs.get
        self._background.run(lambda: retry.run(settings), partial(self._loaded, retry))
        return True

    def _loaded(self, retry: DirectoryRetry, error: Exception | None) -> None:
        log_dir = retry.directory.path
        try:
            if error is not None:
                raise error
            self._manager.logs.finish_retry(retry)
        except Exception as failure:
            self._attempts[log_dir] = failure
            return
        del self._attempts[log_dir]
        LOG.warning("log directory is online again: path=%s logs=%d", log_dir, len(retry.loader.logs))
        self._manager.storage.directory_returned(log_dir)
        set_returned_strays_aside(self._manager, log_dir)
