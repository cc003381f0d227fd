"""The broker process: order of start and stop.

Start: bind ports and answer "starting", read the settings of the topics on disk from ZooKeeper, load logs, open the
ZooKeeper session, register the node, report SERVING. Stop: report NOT_SERVING, move leaders away, close logs, let
running calls finish within a grace period.
"""

import asyncio
import functools
import gc
import itertools
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from paceline import __version__
from paceline.broker.membership.broker_configs import read_broker_config
from paceline.broker.membership.topic_configs import read_known_settings
from paceline.broker.metrics import group_lags_of, label_families_of
from paceline.broker.node import BrokerNode
from paceline.broker.service.broker_id import broker_id_of
from paceline.broker.service.node_handle import NodeHandle
from paceline.broker.service.servers import BrokerServers
from paceline.broker.service.transport import GrpcBrokerTransport
from paceline.coordination.errors import DuplicateBrokerIdError
from paceline.coordination.interface import ZooKeeper
from paceline.coordination.recipes import generate_broker_id
from paceline.log.checkpoint import DamagedFileError
from paceline.log.load_report import LoadReport
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.os_files import OsFiles
from paceline.model.control import Endpoint, LiveBroker
from paceline.model.errors import InvalidConfigError, KafkaStorageError
from paceline.model.identity import Role
from paceline.rpc.memory import give_back_free_memory
from paceline.runtime.lifecycle import (
    ExitCode,
    StartupError,
    descriptor_shares,
    exit_now_after,
    open_file_limit,
)
from paceline.runtime.metrics import node_families
from paceline.runtime.node_process import NodeProcess
from paceline.runtime.settings import BrokerSettings

LOG = logging.getLogger("paceline.broker")

T = TypeVar("T")

_BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_REFRESH_S: Final = 1.0
_REMOVAL_CHECK_S: Final = 10.0
_GIVE_BACK_ROUNDS: Final = 60
_STOP_GRACE_S: Final = 1.0
_GC_YOUNG_OBJECTS: Final = 20_000
"""Allocations between two garbage collections. Hosted partitions are many objects without cycles; with Python's default
of 700 a control request of ten thousand partitions would scan them many times."""


class BrokerProcess(NodeProcess):
    """A broker from start to stop; `run` returns the exit code."""

    _settings: BrokerSettings

    def __init__(self, settings: BrokerSettings, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(Role.BROKER, settings, loop)
        self._core = NodeHandle()
        self._servers = BrokerServers(
            settings, self._core, self._scheduler, self._metrics, self._node_id, self._hub, self._security,
            self.describe_node,
        )  # fmt: skip
        self._transport = GrpcBrokerTransport(self._scheduler.post, self._security, self._controller_lost)
        self._broker_id = settings.keys.broker_id
        self._logs: LogManager | None = None
        self._node: BrokerNode | None = None
        self._is_idle = False
        """Whether an operator has removed this broker from the cluster."""

    # -- start -------------------------------------------------------------------------------------------------

    async def _start(self, begin: float) -> None:
        gc.set_threshold(_GC_YOUNG_OBJECTS)
        await self._servers.start()
        metrics_port = self._serve_metrics()
        report = await self._load_logs()
        await self._resolve_broker_id()
        await self._claim_cluster_id(self._broker_id)
        await self._idle_while_removed()
        if self._over.done():
            return
        node = self._node = self._make_node(self._measured_zookeeper(), report)
        self._core.set(node)
        ready = self._loop.create_future()
        node.start(lambda: None if ready.done() else ready.set_result(None))
        await self._until_connected()
        await self._unless_ended(ready)
        await self._servers.set_serving(True)
        self._begin_tasks()
        self._summary(report, metrics_port, time.monotonic() - begin)

    async def _load_logs(self) -> LoadReport:
        _, max_open_files = descriptor_shares(open_file_limit(), 1, 1)
        logs = LogManager(
            OsFiles(max_open_files, self._metrics.log_flush_seconds.observe),
            self._settings.log_dirs,
            LogConfig.from_properties(self._settings.topic_defaults),
            on_dir_failure=self._log_dir_failed,
            boot_id=_boot_id(),
            min_free_bytes=self._settings.keys.log_dir_min_free_bytes,
            by_space=self._settings.keys.log_dir_placement == "space",
        )
        topics = await self._unless_ended(self._on_own_thread("list-logs", logs.topics_on_disk))
        settings = await self._topic_settings(topics, logs.default_config)
        try:
            now_ms = self._scheduler.wall_ms()
            report = await self._unless_ended(self._on_own_thread("load-logs", lambda: logs.load(now_ms, settings.get)))
        except KafkaStorageError as failure:
            raise StartupError(str(failure), ExitCode.LOG_DIR_LOCKED) from None
        self._logs = logs
        gc.freeze()
        for directory in report.directories:
            if directory.error is not None:
                LOG.error("log directory is offline: path=%s error=%s", directory.path, directory.error)
            for name in directory.quarantined:
                LOG.warning("ignoring unknown entry in a log directory: path=%s", name)
            for name in directory.damaged:
                LOG.warning("ignoring unreadable checkpoint: path=%s", name)
            for name in directory.set_aside:
                LOG.warning("log was set aside, delete it when it is not needed: path=%s", name)
        if not logs.live_log_dirs:
            causes = "; ".join(f"{directory.path}: {directory.error}" for directory in report.directories)
            raise StartupError(
                f"no log directory can be used: {causes}. Make it writable for user {os.geteuid()}, or set log.dirs",
                ExitCode.LOG_DIR_LOCKED,
            )
        return report

    async def _topic_settings(self, topics: set[str], defaults: LogConfig) -> dict[str, LogConfig]:
        """Return the settings of the topics on disk: recovery must not delete records that their policy retains."""
        if not topics:
            return {}
        LOG.info("reading topic settings from ZooKeeper before logs are loaded: topics=%d", len(topics))
        return await self._ask_zookeeper(read_known_settings(topics, defaults))

    async def _resolve_broker_id(self) -> None:
        assert self._logs is not None
        try:
            stored = self._logs.read_meta_properties()
        except (DamagedFileError, OSError) as failure:
            raise StartupError(
                f"the ids of broker and cluster cannot be read: {failure}. Restore the file, or copy it from another "
                "log directory of this broker",
                ExitCode.LOG_DIR_LOCKED,
            ) from None
        known = broker_id_of(self._settings.keys.broker_id, stored)
        if known is None:
            known = await self._ask_zookeeper(generate_broker_id(self._settings.keys.reserved_broker_max_id))
        self._broker_id = known

    def _make_node(self, zookeeper: ZooKeeper, report: LoadReport) -> BrokerNode:
        assert self._logs is not None
        return BrokerNode(
            self._settings.config(self._broker_id),
            self._servers.advertised,
            self._scheduler,
            zookeeper,
            self._logs,
            self._transport,
            random.Random(os.urandom(16)),
            self._state_changed,
            self._end,
            ExecutorWork(self._loop, "flush"),
            ExecutorWork(self._loop, "log-cleaner", self._settings.keys.log_cleaner_threads),
            ExecutorWork(self._loop, "log-dirs", self._settings.keys.num_replica_alter_log_dirs_threads + 1),
            unclean_restart=report.is_unclean_restart(_boot_id()),
            watched=self._hub.watched,
            on_removed=self._removed,
        )

    def _removed(self) -> None:
        """Stop serving, as at a clean stop, and start again, which waits in `_idle_while_removed`."""
        LOG.warning("an operator has removed this broker from the cluster: id=%d", self._broker_id)
        self.starts_again = True
        self._end("its removal from the cluster")

    async def _idle_while_removed(self) -> None:
        """Do not register a broker that an operator has removed: stay healthy and idle until the removal is cancelled.

        A process that ended instead would be started again and again by its supervisor.
        """
        while await self._is_removed() and not self._over.done():
            if not self._is_idle:
                self._is_idle = True
                self._metrics.refresh({"broker_removed": 1})
                await self._servers.set_serving(True)
                LOG.warning(
                    "idle and not registered, because it was removed from the cluster: id=%d take_back=%r",
                    self._broker_id,
                    f"paceline broker remove {self._broker_id} --cancel",
                )
            await asyncio.wait([self._over], timeout=_REMOVAL_CHECK_S)
        if self._is_idle:
            self._is_idle = False
            self._metrics.refresh({"broker_removed": 0})
            await self._servers.set_serving(False)

    async def _is_removed(self) -> bool:
        try:
            return (await self._ask_zookeeper(read_broker_config(self._broker_id))).is_removed
        except StartupError:
            if not self._is_idle:
                raise
            return True

    def _controller_lost(self) -> None:
        if self._node is not None:
            self._node.controller_connection_closed()

    def _summary(self, report: LoadReport, metrics_port: int | None, seconds: float) -> None:
        """Log the most important facts in one line."""
        node = self._node
        assert node is not None
        listeners = ",".join(f"{one.listener}://{one.address}" for one in self._servers.advertised)
        facts = {
            "version": __version__,
            "epoch": node.broker_epoch,
            "listeners": listeners,
            "metrics": metrics_port if metrics_port is not None else "off",
            "log.dirs": ",".join(self._settings.log_dirs),
            "logs": len(self._logs.all_logs()) if self._logs is not None else 0,
            "recovered": len(report.recovered),
            "truncated_bytes": report.truncated_bytes,
            "last_stop": _last_stop(report),
            "seconds": round(seconds, 2),
        }
        LOG.info("broker ready: id=%d cluster=%s", self._broker_id, node.cluster_id, extra=facts)

    # -- waiting -----------------------------------------------------------------------------------------------

    def _on_own_thread(self, name: str, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Run ``work``, which may hang in disk I/O, on a daemon thread, which does not keep the process alive."""
        outcome: asyncio.Future[T] = self._loop.create_future()

        def settle(set_outcome: Callable[[Any], None], value: Any) -> None:
            if not outcome.done():
                set_outcome(value)

        def run() -> None:
            try:
                result = work()
            except Exception as failure:
                self._scheduler.post(functools.partial(settle, outcome.set_exception, failure))
            else:
                self._scheduler.post(functools.partial(settle, outcome.set_result, result))

        threading.Thread(target=run, name=name, daemon=True).start()
        return outcome

    def _raise_ended(self, ended: str | Exception) -> NoReturn:
        if isinstance(ended, DuplicateBrokerIdError):
            raise StartupError(
                f"broker id {self._broker_id} is taken: {ended}; stop the other process or choose another broker.id",
                ExitCode.DUPLICATE_ID,
            )
        if isinstance(ended, InvalidConfigError):
            raise StartupError(str(ended), ExitCode.USAGE)
        super()._raise_ended(ended)

    # -- stop --------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        timeout_s = self._settings.keys.shutdown_timeout_ms / 1000
        finished = exit_now_after(
            timeout_s + 5.0, lambda: LOG.error("stop timed out, exiting: timeout_s=%.0f", timeout_s)
        )
        is_clean = True
        for task in self._tasks:
            task.cancel()
        await self._servers.set_serving(False)
        if self._node is not None:
            stopped = self._loop.create_future()
            self._node.stop(lambda: None if stopped.done() else stopped.set_result(None))
            try:
                await asyncio.wait_for(stopped, timeout_s)
            except TimeoutError:
                is_clean = False
                LOG.warning(
                    "clean stop timed out, the logs may need recovery at the next start: timeout_s=%.0f", timeout_s
                )
        self._hub.close()
        await self._servers.stop(_STOP_GRACE_S)
        await self._loop.run_in_executor(None, self._transport.close)
        if self._node is None and self._logs is not None:
            self._logs.shutdown()
        if self._zookeeper is not None:
            self._zookeeper.close()
        await self._loop.run_in_executor(None, self._state_changes.close)
        self._metrics.close()
        if is_clean:
            finished()
        # After a timeout the exit timer keeps running, because Python would wait at exit for a thread in disk I/O.
        LOG.info("stopped")

    # -- events ------------------------------------------------------------------------------------------------

    def _node_id(self) -> int:
        return self._broker_id

    def _live_brokers(self) -> list[LiveBroker]:
        return [] if self._node is None else list(self._node.metadata.snapshot.brokers.values())

    @property
    def _advertised(self) -> Sequence[Endpoint]:
        return self._servers.advertised

    def _own_facts(self) -> dict[str, Any]:
        if self._node is None:
            return {"node_id": self._broker_id, **({"state": "removed"} if self._is_idle else {})}
        return {
            "node_id": self._broker_id,
            "cluster_id": self._node.cluster_id or "",
            "directories": self._node.directories(),
            "peers": self._node.peers(),
            "controller_epoch": self._node.controller_epoch,
        }

    def _log_dir_failed(self, path: str, failure: Exception) -> None:
        LOG.error("log directory failed: path=%s error=%s", path, failure)

    async def _refresh(self) -> None:
        """Update metrics and readiness from the core, once a second."""
        assert self._node is not None
        serving = True
        for round_number in itertools.count(1):
            await asyncio.sleep(_REFRESH_S)
            if round_number % _GIVE_BACK_ROUNDS == 0:
                give_back_free_memory()
            try:
                self._refresh_metrics(self._node)
            except Exception:  # a metric that cannot be computed must not end readiness
                LOG.exception("updating the metrics failed")
            if self._node.ready != serving:
                serving = self._node.ready
                await self._servers.set_serving(serving)

    def _refresh_metrics(self, node: BrokerNode) -> None:
        limit = self._settings.keys.metrics_partitions_max
        groups = node.groups.numbers()
        self._metrics.refresh(
            node.metrics_snapshot()
            | {
                "partitions_without_series": max(0, len(node.replica_manager.hosted.online) - limit),
                "watchers": self._hub.watcher_count,
                "waiting_fetches_per_connection": self._servers.fetch_waits.largest,
            }
        )
        self._metrics.families.rows = {
            **label_families_of(node.replica_manager, limit),
            **(self._zookeeper.families() if self._zookeeper is not None else {}),
            **node_families(self.describe_node()),
            **self._throttled(),
            "group_lag_records": group_lags_of(node.replica_manager, node.groups, limit),
            "groups": groups.by_state,
            "group_limit_used": groups.largest,
        }


def _last_stop(report: LoadReport) -> str:
    if all(directory.stored_boot_id is None for directory in report.directories):
        return "none"
    return "clean" if report.clean_shutdown else "unclean"


class ExecutorWork:
    """Runs blocking disk work on ``threads`` threads, so that the event loop never blocks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, threads: int = 1) -> None:
        self._loop = loop
        self._executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)

    def run(self, work: Callable[[], None], on_done: Callable[[Exception | None], None]) -> None:
        """Run ``work`` on a thread, then call ``on_done`` on the event loop."""
        future = self._loop.run_in_executor(self._executor, work)

        def finished(done: "asyncio.Future[None]") -> None:
            error = done.exception()
            on_done(error if error is None or isinstance(error, Exception) else RuntimeError(repr(error)))

        future.add_done_callback(finished)


def _boot_id() -> str:
    """Return the kernel's boot id, which changes when the machine restarts, but not when only this process restarts."""
    try:
        return _BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:
        return ""
