"""Read the access lists from ZooKeeper and follow their changes; write rules.

`AccessListReader` uses the session of its node. It reads all rules after every connect, because a reader that was
disconnected has missed watches; until that read is complete, the rules of the read before remain. Between connects it
reads the resources that change nodes name. The rules on a resource that cannot be parsed are refusals for everybody
but super users.

Source: docs/protocol/zookeeper.md#access-lists.
"""

import logging
import random
from collections.abc import Callable, Mapping
from typing import Final

from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError, ZooKeeperRequestError
from paceline.coordination.flow import Flow, FlowRun, Zk
from paceline.coordination.interface import (
    Create,
    Delete,
    GetChildren,
    GetData,
    GetMany,
    Multi,
    Operation,
    Response,
    SetData,
    ZkCode,
    ZooKeeper,
)
from paceline.coordination.recipes import MAX_ATTEMPTS, ensure_paths, expect
from paceline.coordination.znode_reader import ZnodeReader
from paceline.model.acls import (
    AccessRules,
    AclEntry,
    Entries,
    PatternType,
    ResourcePattern,
    ResourceType,
    UnreadableResource,
)
from paceline.model.errors import InvalidRequestError
from paceline.model.scheduler import Scheduler

LOG: Final = logging.getLogger(__name__)
CHANGES_KEPT_MS: Final = 15 * 60 * 1_000
"""Age at which a reader deletes change nodes, as in Kafka; a reader that was away for longer reads everything."""
_CHANGE_FOLDERS: Final = (znodes.ACL_CHANGES, znodes.EXTENDED_ACL_CHANGES)
_READS_AT_ONCE: Final = 500

Changed = Mapping[ResourcePattern, Entries]


class AccessListReader(ZnodeReader[tuple[list[str], "Changed | None"]]):
    """Reads and writes the access lists; ``on_rules`` is called after every read of rules."""

    def __init__(
        self, inner: ZooKeeper, scheduler: Scheduler, rng: random.Random, on_rules: Callable[[AccessRules], None]
    ) -> None:
        super().__init__(inner, scheduler, rng, _CHANGE_FOLDERS, "access lists")
        self._on_rules = on_rules
        self.rules: AccessRules | None = None
        """The rules of the latest read, None before the first."""
        self._first_seen_ms: dict[str, float] = {}
        """Present change nodes, with the time at which this reader has first seen them."""

    def change(
        self,
        resource: ResourcePattern,
        new: Callable[[tuple[AclEntry, ...]], tuple[AclEntry, ...]],
        on_done: Callable[["AclChange | Exception"], None],
    ) -> None:
        """Write the rules on a resource, which ``new`` makes from the present rules; this node obeys them at once."""

        def done(change: "AclChange") -> None:
            if self.rules is not None:
                self._take_over({resource: change[1]})
            on_done(change)

        FlowRun(change_acls(resource, new), self._patient, self._scheduler, done, on_done).start()

    def _reading(self) -> Flow[tuple[list[str], Changed | None]]:
        return _read_all() if self._whole or self.rules is None else self._read_changes()

    def _have_read(self, found: tuple[list[str], Changed | None]) -> None:
        present, changed = found
        if changed is None:  # a change node names no resource
            self._whole = self._again = True
            return
        now_ms = self._scheduler.now_ms()
        self._first_seen_ms = {path: self._first_seen_ms.get(path, now_ms) for path in present}
        if self._whole or self.rules is None:
            self._whole = False
            self.rules = None
        self._take_over(changed)
        old = [Delete(path) for path, seen_ms in self._first_seen_ms.items() if now_ms - seen_ms >= CHANGES_KEPT_MS]
        if old:
            self._patient.submit(old[:_READS_AT_ONCE], lambda _responses: None)

    def _take_over(self, changed: Changed) -> None:
        for entries in changed.values():
            if isinstance(entries, UnreadableResource):
                LOG.error("access list cannot be parsed, refusing all but super users: cause=%s", entries)
        self.rules = AccessRules(changed) if self.rules is None else self.rules.changed(changed)
        self._on_rules(self.rules)

    def _read_changes(self) -> Flow[tuple[list[str], Changed | None]]:
        """Return the present change nodes, with watches, and the rules on the resources that new ones name."""
        present = yield from _list_changes()
        fresh = [path for path in present if path not in self._first_seen_ms]
        changed: dict[ResourcePattern, None] = {}
        for first in range(0, len(fresh), _READS_AT_ONCE):
            paths = fresh[first : first + _READS_AT_ONCE]
            responses: list[Response] = yield Zk([GetData(path) for path in paths])
            for path, response in zip(paths, responses, strict=True):
                expect(response, path, ZkCode.NO_NODE)
                try:
                    if response.ok:
                        changed[znodes.decode_acl_change(path, response.data)] = None
                except MalformedZnodeError as error:
                    LOG.warning("change of access lists cannot be parsed, reading all: error=%s", error)
                    return present, None
        return present, (yield from _read_resources(list(changed)))


AclChange = tuple[tuple[AclEntry, ...], tuple[AclEntry, ...]]
"""The rules on a resource before and after a change."""


def change_acls(
    resource: ResourcePattern, new: Callable[[tuple[AclEntry, ...]], tuple[AclEntry, ...]]
) -> Flow[AclChange]:
    """Write the rules on a resource and announce them, in one transaction; a resource without rules has no node.

    ``new`` may be called again, with other rules, after another client's change.

    Raises:
        InvalidRequestError: the present rules cannot be parsed, and ``new`` keeps some of them.
    """
    path = znodes.acl_path(resource)
    announce = Create(znodes.acl_change_prefix(resource.pattern), znodes.encode_acl_change(resource), sequential=True)
    response = Response(ZkCode.OTHER)
    for _ in range(MAX_ATTEMPTS):
        (read,) = yield Zk([GetData(path)])
        expect(read, path, ZkCode.NO_NODE)
        unreadable = ""
        try:
            old = znodes.decode_acls(path, read.data) if read.ok else ()
        except MalformedZnodeError as error:
            old, unreadable = (), str(error)
        entries = tuple(dict.fromkeys(new(old)))
        if entries and unreadable:
            raise InvalidRequestError(f"remove all rules on {resource} first, they cannot be parsed: {unreadable}")
        if entries == old and not unreadable:
            return old, entries
        operation: Operation
        if not read.ok:
            operation = Create(path, znodes.encode_acls(entries))
        elif entries:
            assert read.stat is not None
            operation = SetData(path, znodes.encode_acls(entries), read.stat.version)
        else:
            assert read.stat is not None
            operation = Delete(path, read.stat.version)
        (response,) = yield Zk([Multi((operation, announce))])
        if response.ok:
            return old, entries
        expect(response, path, ZkCode.NODE_EXISTS, ZkCode.NO_NODE, ZkCode.BAD_VERSION)
        if response.code is ZkCode.NO_NODE:
            yield from ensure_paths(znodes.ACL_NODES)
    raise ZooKeeperRequestError(response.code, path)


def _list_changes() -> Flow[list[str]]:
    responses: list[Response] = yield Zk([GetChildren(folder, watch=True) for folder in _CHANGE_FOLDERS])
    paths: list[str] = []
    for folder, response in zip(_CHANGE_FOLDERS, responses, strict=True):
        expect(response, folder)
        paths += (f"{folder}/{name}" for name in sorted(response.children))
    return paths


def _read_all() -> Flow[tuple[list[str], Changed | None]]:
    """Return the present change nodes, with watches, and the rules on every resource, which are read after them."""
    yield from ensure_paths(znodes.ACL_NODES)
    present = yield from _list_changes()
    folders = [(kind, pattern) for pattern in PatternType for kind in ResourceType]
    paths = [f"{znodes.ACL_ROOTS[pattern]}/{kind}" for kind, pattern in folders]
    responses: list[Response] = yield Zk([GetChildren(path) for path in paths])
    resources = []
    for (kind, pattern), path, response in zip(folders, paths, responses, strict=True):
        expect(response, path)
        resources += [ResourcePattern(kind, name, pattern) for name in response.children]
    found = yield from _read_resources(resources)
    return present, {resource: entries for resource, entries in found.items() if entries}


def _read_resources(resources: list[ResourcePattern]) -> Flow[dict[ResourcePattern, Entries]]:
    found: dict[ResourcePattern, Entries] = {}
    for first in range(0, len(resources), _READS_AT_ONCE):
        some = resources[first : first + _READS_AT_ONCE]
        paths = [znodes.acl_path(resource) for resource in some]
        (many,) = yield Zk([GetMany(tuple(paths))])
        expect(many, paths[0], ZkCode.UNIMPLEMENTED)
        responses = many.results if many.ok else (yield Zk([GetData(path) for path in paths]))
        for resource, path, response in zip(some, paths, responses, strict=True):
            expect(response, path, ZkCode.NO_NODE)
            try:
                found[resource] = znodes.decode_acls(path, response.data) if response.ok else ()
            except MalformedZnodeError as error:
                found[resource] = UnreadableResource(str(error))
    return found
