"""Read the client quotas from ZooKeeper and follow their changes; write quotas.

`QuotaReader` uses the session of its node. It reads all quotas after every connect, and again when a notification under
``/config/changes`` names a user or a client id. Until the first read there are no quotas; without ZooKeeper those of
the last read remain.

Source: docs/protocol/zookeeper.md#client-quotas; Kafka 2.8 ConfigCommand, AdminZkClient.
"""

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError, SessionLostError, ZooKeeperRequestError
from paceline.coordination.flow import Flow, FlowRun, Zk
from paceline.coordination.interface import (
    Create,
    GetChildren,
    GetData,
    Multi,
    Operation,
    Response,
    SessionEvent,
    SessionState,
    SetData,
    WatchEvent,
    ZkCode,
    ZooKeeper,
)
from paceline.coordination.patient_zookeeper import PatientZooKeeper, WrappedZooKeeper
from paceline.coordination.recipes import MAX_ATTEMPTS, ensure_paths, expect
from paceline.model.backoff import Retries
from paceline.model.quotas import QuotaEntity, Values
from paceline.model.scheduler import Scheduler

LOG: Final = logging.getLogger(__name__)
_READS_AT_ONCE: Final = 500

Quotas = dict[QuotaEntity, Values]
QuotaChange = tuple[Values, Values]
"""The quotas of an entity before and after a change."""


class QuotaReader(WrappedZooKeeper):
    """Wraps a node's client, whose session it shares; ``on_quotas`` is called after every read of quotas."""

    def __init__(
        self, inner: ZooKeeper, scheduler: Scheduler, rng: random.Random, on_quotas: Callable[[Quotas], None]
    ) -> None:
        super().__init__(inner)
        self._patient = PatientZooKeeper(inner)
        self._scheduler = scheduler
        self._retries = Retries(scheduler, rng)
        self._on_quotas = on_quotas
        self.quotas: Quotas | None = None
        """The quotas of the latest read, None before the first."""
        self._seen: frozenset[str] | None = None
        """Notifications whose changes are in `quotas`; None when everything must be read."""
        self._run: FlowRun[tuple[frozenset[str], Quotas | None]] | None = None
        self._again = False

    def submit(self, requests: Iterable[object], on_done: Callable[[list[Response]], None]) -> None:
        """Send requests of the node."""
        self._inner.submit(requests, on_done)  # type: ignore[arg-type]

    def start(self, on_session: Callable[[SessionEvent], None], on_watch: Callable[[WatchEvent], None]) -> None:
        """Connect; read the quotas when connected, and when a changed configuration is announced."""

        def session(event: SessionEvent) -> None:
            on_session(event)
            if event.state is SessionState.CONNECTED:
                self._seen = None
                self._end_run()
                self._read()
            elif event.state in (SessionState.EXPIRED, SessionState.CLOSED):
                self._end_run()

        def watch(event: WatchEvent) -> None:
            on_watch(event)  # the node has a watch on the same notifications
            if event.path == znodes.CONFIG_CHANGES:
                self._read()

        super().start(session, watch)

    def close(self) -> None:
        """Stop reading, and end the session."""
        self._end_run()
        super().close()

    def change(
        self,
        entity: QuotaEntity,
        changes: Mapping[str, float | None],
        on_done: Callable[[QuotaChange | Exception], None],
    ) -> None:
        """Set quotas of an entity, None removes one; this node applies them at once."""

        def done(change: QuotaChange) -> None:
            if self.quotas is not None:
                self._take_over({**self.quotas, entity: change[1]})
            on_done(change)

        FlowRun(change_quotas(entity, changes), self._patient, self._scheduler, done, on_done).start()

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.cancel()
            self._run = None

    def _read(self) -> None:
        if self._run is not None:
            self._again = True
            return
        self._again = False
        self._run = FlowRun(_read(self._seen), self._patient, self._scheduler, self._have_read, self._read_failed)
        self._run.start()

    def _have_read(self, found: tuple[frozenset[str], Quotas | None]) -> None:
        self._run = None
        self._retries.reset()
        self._seen, quotas = found
        if quotas is not None:
            self._take_over(quotas)
        if self._again:
            self._read()

    def _take_over(self, quotas: Quotas) -> None:
        self.quotas = {entity: values for entity, values in quotas.items() if values}
        self._on_quotas(self.quotas)

    def _read_failed(self, error: Exception) -> None:
        self._run = None
        self._seen = None
        if isinstance(error, SessionLostError):
            return  # the next session reads everything
        if self._retries.failures == 0:
            LOG.warning("client quotas not read, trying again: error=%s", error)
        self._retries.schedule(self._read)


def change_quotas(entity: QuotaEntity, changes: Mapping[str, float | None]) -> Flow[QuotaChange]:
    """Change quotas of an entity and announce the change, in one transaction; its other settings stay.

    Raises:
        MalformedZnodeError: the node's present data cannot be parsed.
    """
    entity_path = znodes.quota_entity_path(entity)
    path = znodes.config_path(entity_path)
    announce = Create(znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change(entity_path), sequential=True)
    response = Response(ZkCode.OTHER)
    for _ in range(MAX_ATTEMPTS):
        (read,) = yield Zk([GetData(path)])
        expect(read, path, ZkCode.NO_NODE)
        config = znodes.decode_config(path, read.data) if read.ok else {}
        changed = {key: value for key, value in config.items() if key not in changes}
        set_values = {key: value for key, value in changes.items() if value is not None}
        changed |= {key: znodes.encode_quota_value(key, value) for key, value in set_values.items()}
        (old, _), (new, _) = znodes.quotas_in(config), znodes.quotas_in(changed)
        if changed == config:
            return old, new
        data = znodes.encode_config(changed)
        write: Operation = Create(path, data)
        if read.ok:
            assert read.stat is not None
            write = SetData(path, data, read.stat.version)
        (response,) = yield Zk([Multi((write, announce))])
        if response.ok:
            return old, new
        expect(response, path, ZkCode.NODE_EXISTS, ZkCode.NO_NODE, ZkCode.BAD_VERSION)
        if response.code is ZkCode.NO_NODE:
            yield from ensure_paths([znodes.CONFIG_CHANGES, path.rpartition("/")[0]])
    raise ZooKeeperRequestError(response.code, path)


def _read(seen: frozenset[str] | None) -> Flow[tuple[frozenset[str], Quotas | None]]:
    """Return the present notifications, with a watch, and all quotas; None if no new notification is about quotas."""
    if seen is None:
        yield from ensure_paths([znodes.CONFIG_CHANGES, *znodes.QUOTA_ROOTS])
    (listed,) = yield Zk([GetChildren(znodes.CONFIG_CHANGES, watch=True)])
    expect(listed, znodes.CONFIG_CHANGES)
    present = frozenset(listed.children)
    if seen is not None:
        announced = yield from _read_nodes([f"{znodes.CONFIG_CHANGES}/{name}" for name in sorted(present - seen)])
        if not any(_is_about_quotas(path, data) for path, data in announced):
            return present, None
    return present, (yield from _read_quotas())


def _is_about_quotas(path: str, data: bytes | None) -> bool:
    try:
        return znodes.quota_entity(znodes.decode_config_change(path, data)) is not None
    except MalformedZnodeError:
        return False


def _read_quotas() -> Flow[Quotas]:
    users, clients = yield from _children(znodes.QUOTA_ROOTS)
    pairs = yield from _children([f"{path}/clients" for path in users])
    nodes = yield from _read_nodes([*users, *clients, *(path for paths in pairs for path in paths)])
    quotas: Quotas = {}
    for path, data in nodes:
        entity = znodes.quota_entity(path.removeprefix(f"{znodes.CONFIG}/"))
        try:
            values, unusable = znodes.quotas_in(znodes.decode_config(path, data))
        except MalformedZnodeError as error:
            LOG.error("client quotas cannot be parsed, applying none of them: cause=%s", error)
            continue
        if unusable:
            LOG.error("client quotas are not numbers, ignoring them: path=%s keys=%s", path, ",".join(unusable))
        if values and entity is not None:
            quotas[entity] = values
    return quotas


def _children(paths: Iterable[str]) -> Flow[list[list[str]]]:
    """Return the paths of the children of each node; none for a node that does not exist."""
    found = []
    wanted = list(paths)
    for first in range(0, len(wanted), _READS_AT_ONCE):
        some = wanted[first : first + _READS_AT_ONCE]
        responses: list[Response] = yield Zk([GetChildren(path) for path in some])
        for path, response in zip(some, responses, strict=True):
            expect(response, path, ZkCode.NO_NODE)
            found.append([f"{path}/{name}" for name in (response.children if response.ok else ())])
    return found


def _read_nodes(paths: list[str]) -> Flow[list[tuple[str, bytes | None]]]:
    found = []
    for first in range(0, len(paths), _READS_AT_ONCE):
        some = paths[first : first + _READS_AT_ONCE]
        responses: list[Response] = yield Zk([GetData(path) for path in some])
        for path, response in zip(some, responses, strict=True):
            expect(response, path, ZkCode.NO_NODE)
            if response.ok:
                found.append((path, response.data))
    return found
