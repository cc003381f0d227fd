"""Read the client quotas from ZooKeeper and follow their changes; write quotas.

`QuotaReader` uses the session of its node. It reads all quotas after every connect, and again when a notification under
``/config/changes`` names a user or a client id. Until the first read there are no quotas; without ZooKeeper those of
the last read remain.

Source: docs/protocol/zookeeper.md#client-quotas.
"""

import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError, ZooKeeperRequestError
from paceline.coordination.flow import Flow, FlowRun, Zk
from paceline.coordination.interface import (
    Create,
    GetChildren,
    GetData,
    Multi,
    Operation,
    Response,
    SetData,
    ZkCode,
    ZooKeeper,
)
from paceline.coordination.recipes import MAX_ATTEMPTS, ensure_paths, expect
from paceline.coordination.znode_reader import ZnodeReader
from paceline.model.quotas import QuotaEntity, Values
from paceline.model.scheduler import Scheduler

LOG: Final = logging.getLogger(__name__)
_READS_AT_ONCE: Final = 500

Quotas = dict[QuotaEntity, Values]
QuotaChange = tuple[Values, Values]
"""The quotas of an entity before and after a change."""


class QuotaReader(ZnodeReader[tuple[frozenset[str], "Quotas | None"]]):
    """Reads and writes the quotas; ``on_quotas`` is called after every read of quotas."""

    def __init__(
        self, inner: ZooKeeper, scheduler: Scheduler, rng: random.Random, on_quotas: Callable[[Quotas], None]
    ) -> None:
        super().__init__(inner, scheduler, rng, (znodes.CONFIG_CHANGES,), "client quotas", shared=True)
        self._on_quotas = on_quotas
        self.quotas: Quotas | None = None
        """The quotas of the latest read, None before the first."""
        self._seen: frozenset[str] = frozenset()
        """Notifications whose changes are in `quotas`."""

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

    def _reading(self) -> Flow[tuple[frozenset[str], Quotas | None]]:
        return _read(None if self._whole else self._seen)

    def _have_read(self, found: tuple[frozenset[str], Quotas | None]) -> None:
        self._whole = False
        self._seen, quotas = found
        if quotas is not None:
            self._take_over(quotas)

    def _take_over(self, quotas: Quotas) -> None:
        self.quotas = {entity: values for entity, values in quotas.items() if values}
        self._on_quotas(self.quotas)


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
        paths = [f"{znodes.CONFIG_CHANGES}/{name}" for name in sorted(present - seen)]
        announced = yield from _responses([GetData(path) for path in paths])
        changed = set()
        for path, response in announced:
            with contextlib.suppress(MalformedZnodeError):
                changed.add(znodes.quota_entity(znodes.decode_config_change(path, response.data)))
        if not changed - {None}:
            return present, None
    return present, (yield from _read_quotas())


def _read_quotas() -> Flow[Quotas]:
    named = yield from _children(znodes.QUOTA_ROOTS)
    paths = named + (yield from _children([f"{path}/clients" for path in named]))
    quotas: Quotas = {}
    for path, response in (yield from _responses([GetData(path) for path in paths])):
        entity = znodes.quota_entity(path.removeprefix(f"{znodes.CONFIG}/"))
        try:
            values, unusable = znodes.quotas_in(znodes.decode_config(path, response.data))
        except MalformedZnodeError as error:
            LOG.error("client quotas cannot be parsed, applying none of them: cause=%s", error)
            continue
        if unusable:
            LOG.error("client quotas are not numbers, ignoring them: path=%s keys=%s", path, ",".join(unusable))
        if values and entity is not None:
            quotas[entity] = values
    return quotas


def _children(paths: Iterable[str]) -> Flow[list[str]]:
    found = yield from _responses([GetChildren(path) for path in paths])
    return [f"{path}/{name}" for path, response in found for name in response.children]


def _responses(requests: Sequence[GetChildren | GetData]) -> Flow[list[tuple[str, Response]]]:
    """Return the responses about the nodes that exist, with the paths of these."""
    found = []
    for first in range(0, len(requests), _READS_AT_ONCE):
        some = requests[first : first + _READS_AT_ONCE]
        for request, response in zip(some, (yield Zk(some)), strict=True):
            expect(response, request.path, ZkCode.NO_NODE)
            if response.ok:
                found.append((request.path, response))
    return found
