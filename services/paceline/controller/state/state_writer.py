"""Write partition states to ZooKeeper, many per multi.

A multi has a check of ``/controller_epoch``, then one conditional write per partition, and last the entry for
``/controller_journal``. Chunks are limited in operations and bytes, not counting the journal entry. A failed multi
reports only its first failed operation, so the whole chunk is read again and the caller decides again; the chunks of
the next round are half as large.

Source: docs/protocol/zookeeper.md#batched-writes; docs/protocol/zookeeper.md#controller-journal.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.controller.context import ControllerContext
from paceline.controller.errors import UnexpectedResponseError
from paceline.controller.state.journal import ControllerJournal
from paceline.controller.zk_store import ZkStore, first_failure, send
from paceline.coordination import znodes
from paceline.coordination.flow import Flow
from paceline.coordination.interface import Create, Exists, Multi, Operation, Response, SetData, ZkCode
from paceline.coordination.isr_history import next_extra
from paceline.coordination.znodes.json_codec import JsonValue
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.settings import ControllerConfig

LOG = logging.getLogger(__name__)

OPERATION_OVERHEAD_BYTES = 64
"""Bytes of headers, version and lengths of an operation, rounded up."""


@dataclass(frozen=True, slots=True)
class StateWrite:
    """A decision to write; ``state.zk_version`` is the version that it is based on."""

    topic_partition: TopicPartition
    state: LeaderAndIsr
    lost: tuple[int, ...] = ()
    """Replicas whose data cannot be trusted from now on."""
    forget_history: bool = False
    """Whether the leader comes from an unclean election."""

    def matches(self, found: LeaderAndIsr) -> bool:
        """Whether ``found`` is this very write: an earlier attempt was applied and its answer was lost."""
        return _at_version(found, self.state.zk_version) == self.state


@dataclass(slots=True)
class CommitOutcome:
    """Result of a round of writes."""

    written: dict[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    """Applied writes, with the new version."""
    conflicted: dict[TopicPartition, LeaderAndIsr | None] = field(default_factory=dict)
    """Writes that were not applied, with the present state; None when the node was deleted."""
    refused: dict[TopicPartition, ZkCode] = field(default_factory=dict)
    """Writes that ZooKeeper refuses although the state has not changed: another attempt would be refused as well."""


@dataclass(frozen=True, slots=True)
class _Journaled:
    multi: Multi
    sequence: int


@dataclass(slots=True, eq=False)
class StateWriter:
    """Writes partition states in chunks.

    ``on_commit`` is called at the end of each commit, before the caller has put the states into the context.

    The caller does so before its flow waits again.
    """

    _config: ControllerConfig
    _context: ControllerContext
    _store: ZkStore
    _journal: ControllerJournal
    _on_commit: Callable[[], None]

    @property
    def chunk_limit(self) -> int:
        """Maximum number of partitions in a multi."""
        return max(1, self._config.zookeeper_multi_max_operations - 1)

    def commit(self, writes: Sequence[StateWrite], limit: int) -> Flow[CommitOutcome]:
        """Write states, each on condition of its version, at most ``limit`` per multi.

        Raises:
            ControllerMovedError: the fence failed; no write of the failing chunk was applied.
        """
        outcome = CommitOutcome()
        extras = {write.topic_partition: self._extra(write) for write in writes}
        sized = ((write, self._set(write, extras[write.topic_partition])) for write in writes)
        chunks = list(self._chunks(sized, limit))
        multis = [self._journaled(chunk, [operation for _, operation in chunk]) for chunk in chunks]
        responses = yield from self._send(multis)
        to_read: list[StateWrite] = []
        for chunk, response in zip(chunks, responses, strict=True):
            if not response.ok:
                to_read.extend(write for write, _ in chunk)
                continue
            for (write, _), result in zip(chunk, response.results[1:-1], strict=True):
                version = write.state.zk_version + 1 if result.stat is None else result.stat.version
                outcome.written[write.topic_partition] = _at_version(write.state, version)
                self._remember_extra(write.topic_partition, extras[write.topic_partition])
        if to_read:
            yield from self._read_back(to_read, outcome)
        for chunk, response in zip(chunks, responses, strict=True):
            if not response.ok and len(chunk) == 1:
                self._note_refusal(chunk[0][0], first_failure(response)[1], outcome)
        self._settle()
        return outcome

    def rewrite(
        self, topic_partitions: Iterable[TopicPartition], change: Callable[[TopicPartition], StateWrite | None]
    ) -> Flow[list[TopicPartition]]:
        """Write the states returned by ``change``; return the partitions that were written.

        After a concurrent write of a leader, ``change`` is called again with the state that was read into the context.

        Raises:
            ControllerMovedError: the fence failed.
            UnexpectedResponseError: ZooKeeper refused to write a state; all other states were written.
        """
        context = self._context
        written: list[TopicPartition] = []
        refused: dict[TopicPartition, ZkCode] = {}
        remaining = list(topic_partitions)
        limit = self.chunk_limit
        while remaining:
            writes = [write for write in map(change, remaining) if write is not None and self._is_ours(write)]
            if not writes:
                break
            outcome = yield from self.commit(writes, limit)
            for topic_partition, state in outcome.written.items():
                context.remember(topic_partition, state)
                written.append(topic_partition)
            refused.update(outcome.refused)
            remaining = []
            for topic_partition, found in outcome.conflicted.items():
                if found is None:
                    context.forget_leadership(topic_partition)
                else:
                    context.remember(topic_partition, found)
                    remaining.append(topic_partition)
            limit = max(1, limit // 2)
        for topic_partition, code in refused.items():
            raise UnexpectedResponseError(code, f"write the state of {topic_partition}")
        return written

    def _is_ours(self, write: StateWrite) -> bool:
        known = self._context.leadership[write.topic_partition]
        if known.controller_epoch <= self._context.epoch:
            return True
        LOG.error("state was written by a newer controller: partition=%s state=%s", write.topic_partition, known)
        return False

    @staticmethod
    def _note_refusal(write: StateWrite, code: ZkCode, outcome: CommitOutcome) -> None:
        """Move the write from ``conflicted`` to ``refused`` if the reason was no conflict."""
        topic_partition = write.topic_partition
        if code not in (ZkCode.BAD_VERSION, ZkCode.NO_NODE) and outcome.conflicted.get(topic_partition) is not None:
            LOG.error(
                "partition state not written, ZooKeeper refused: partition=%s error=%s", topic_partition, code.name
            )
            del outcome.conflicted[topic_partition]
            outcome.refused[topic_partition] = code

    def _journaled(self, chunk: Iterable[tuple[StateWrite, object]], operations: Iterable[Operation]) -> "_Journaled":
        entry = self._journal.advance(write.topic_partition for write, _ in chunk)
        return _Journaled(self._store.fenced(*operations, entry), self._journal.sequence)

    def _send(self, multis: Sequence["_Journaled"]) -> Flow[list[Response]]:
        responses = yield from self._store.send_fenced([one.multi for one in multis])
        without_journal = []
        for index, (one, response) in enumerate(zip(multis, responses, strict=True)):
            if response.ok:
                self._journal.confirm(one.sequence)
            elif first_failure(response)[0] == len(one.multi.operations) - 1:
                without_journal.append(index)
        if without_journal:
            # The journal was deleted. The writes that failed for this reason are read back and decided again, as after
            # any conflict.
            LOG.warning("journal was deleted, creating it: path=%s", znodes.CONTROLLER_JOURNAL)
            (created,) = yield from self._store.send_fenced([self._store.fenced(self._journal.forget())])
            code = first_failure(created)[1]
            if not created.ok and code is not ZkCode.NODE_EXISTS:
                LOG.error("journal not created, ZooKeeper refused: error=%s", code.name)
                for index in without_journal:
                    responses[index] = Response(code)
        return responses

    def touch(self, topic_partitions: Sequence[TopicPartition]) -> Flow[None]:
        """Write partitions to the journal whose new states reach standbys in no other way; ignore an empty list.

        Raises:
            ControllerMovedError: the fence failed.
            UnexpectedResponseError: ZooKeeper refused.
        """
        if not topic_partitions:
            return
        entry = _Journaled(self._store.fenced(self._journal.advance(topic_partitions)), self._journal.sequence)
        (response,) = yield from self._send([entry])
        if not response.ok and first_failure(response)[1] is not ZkCode.NO_NODE:
            raise UnexpectedResponseError(first_failure(response)[1], f"set {znodes.CONTROLLER_JOURNAL}")
        self._settle()

    def _settle(self) -> None:
        self._journal.settle()
        self._on_commit()

    def refresh(self, topic_partitions: Iterable[TopicPartition]) -> Flow[None]:
        """Read states into the context, except those that the running event has read.

        If ZooKeeper refuses to read a state, the cached state stays; the next write, conditional on its version,
        fails if the cached state is outdated.
        """
        context = self._context
        doubtful = [
            topic_partition for topic_partition in topic_partitions if topic_partition not in context.seen_in_event
        ]
        if not doubtful:
            return
        unread: set[TopicPartition] = set()
        found = yield from self._store.partition_states(doubtful, unread=unread)
        for topic_partition in doubtful:
            if topic_partition in found:
                context.remember(topic_partition, found[topic_partition])
            elif topic_partition not in unread:
                context.forget_leadership(topic_partition)

    def _read_back(self, writes: Sequence[StateWrite], outcome: CommitOutcome) -> Flow[None]:
        found = yield from self._store.partition_states([write.topic_partition for write in writes])
        for write in writes:
            state = found.get(write.topic_partition)
            if state is not None and write.matches(state):
                outcome.written[write.topic_partition] = state
            else:
                outcome.conflicted[write.topic_partition] = state

    def create(self, writes: Sequence[StateWrite], topics_with_partitions: set[str]) -> Flow[CommitOutcome]:
        """Create state nodes with their parents; an existing state with other content is a conflict.

        ``topics_with_partitions`` are topics whose ``partitions`` node is known to exist.
        """
        outcome = CommitOutcome()
        parents_made = set(topics_with_partitions)
        groups = []
        for write in writes:
            operations = self._creates(write, parents_made)
            parents_made.add(write.topic_partition.topic)
            groups.append((write, operations))
        yield from self._create_groups(groups, outcome, retry=True)
        self._settle()
        return outcome

    def _create_groups(
        self, groups: Sequence[tuple[StateWrite, list[Operation]]], outcome: CommitOutcome, retry: bool
    ) -> Flow[None]:
        chunks = list(self._group_chunks(groups, self.chunk_limit if retry else 1))
        failed: list[StateWrite] = []
        multis = [self._journaled(chunk, [op for _, group in chunk for op in group]) for chunk in chunks]
        # A later chunk may need a parent from an earlier chunk; ZooKeeper applies the requests of a session in order.
        responses = yield from self._send(multis)
        for chunk, response in zip(chunks, responses, strict=True):
            if response.ok:
                outcome.written.update((write.topic_partition, _at_version(write.state, 0)) for write, _ in chunk)
            elif retry or first_failure(response)[1] is ZkCode.NODE_EXISTS:
                failed.extend(write for write, _ in chunk)
            elif first_failure(response)[1] is ZkCode.NO_NODE:
                outcome.conflicted.update((write.topic_partition, None) for write, _ in chunk)
            else:
                # Refuse only this partition: its parent may be a node that another tool created with an ACL.
                for write, _ in chunk:
                    code = outcome.refused[write.topic_partition] = first_failure(response)[1]
                    LOG.error(
                        "partition state not created, ZooKeeper refused: partition=%s error=%s",
                        write.topic_partition, code.name,
                    )  # fmt: skip
        if failed and retry:
            exact = yield from self._exact_creates(failed, outcome)
            yield from self._create_groups(exact, outcome, retry=False)
        elif failed:
            yield from self._read_back(failed, outcome)

    def _exact_creates(
        self, writes: Sequence[StateWrite], outcome: CommitOutcome
    ) -> Flow[list[tuple[StateWrite, list[Operation]]]]:
        """Read the existing nodes of the failed chunks and return the creations that are still needed."""
        yield from self._read_back(writes, outcome)
        missing = [write for write in writes if outcome.conflicted.get(write.topic_partition, 0) is None]
        paths: list[str] = []
        for write in missing:
            paths.append(znodes.topic_partitions_path(write.topic_partition.topic))
            paths.append(znodes.partition_path(write.topic_partition))
        responses = yield from send([Exists(path) for path in paths])
        existing = {path for path, response in zip(paths, responses, strict=True) if response.ok}
        groups: list[tuple[StateWrite, list[Operation]]] = []
        for write in missing:
            del outcome.conflicted[write.topic_partition]
            operations = [op for op in self._creates(write, set()) if op.path not in existing]
            existing.update(op.path for op in operations)
            groups.append((write, operations))
        return groups

    def _creates(self, write: StateWrite, topics_with_partitions: set[str]) -> list[Operation]:
        topic_partition = write.topic_partition
        operations: list[Operation] = []
        if topic_partition.topic not in topics_with_partitions:
            operations.append(Create(znodes.topic_partitions_path(topic_partition.topic)))
        operations.append(Create(znodes.partition_path(topic_partition)))
        data = znodes.encode_partition_state(write.state)
        operations.append(Create(znodes.partition_state_path(topic_partition), data))
        return operations

    def _set(self, write: StateWrite, extra: Mapping[str, JsonValue] | None) -> SetData:
        path = znodes.partition_state_path(write.topic_partition)
        return SetData(path, znodes.encode_partition_state(write.state, extra), write.state.zk_version)

    def _extra(self, write: StateWrite) -> Mapping[str, JsonValue] | None:
        """Return the keys outside Kafka's schema that the write stores; the cached state must be the write's base."""
        topic_partition = write.topic_partition
        extra = self._context.state_extras.get(topic_partition)
        if not extra and not write.lost and len(write.state.isr) > 1:
            return None  # The usual case: no former member to store.
        known = self._context.leadership.get(topic_partition)
        old_isr = write.state.isr if known is None else known.isr
        kept = self._context.assignment(topic_partition).replicas if extra or len(old_isr) > 1 else None
        failed = [b for b, lost in self._context.on_offline_dirs.items() if topic_partition in lost]
        return next_extra(extra, old_isr, write.state.isr, kept, write.lost, failed, write.forget_history)

    def _remember_extra(self, topic_partition: TopicPartition, extra: Mapping[str, JsonValue] | None) -> None:
        if extra:
            self._context.state_extras[topic_partition] = extra
        else:
            self._context.state_extras.pop(topic_partition, None)

    def _chunks(
        self, sized: Iterable[tuple[StateWrite, SetData]], limit: int
    ) -> Iterator[list[tuple[StateWrite, SetData]]]:
        chunk: list[tuple[StateWrite, SetData]] = []
        size = 0
        for write, operation in sized:
            cost = operation_bytes(operation)
            if chunk and (len(chunk) >= limit or size + cost > self._config.zookeeper_multi_max_bytes):
                yield chunk
                chunk, size = [], 0
            chunk.append((write, operation))
            size += cost
        if chunk:
            yield chunk

    def _group_chunks(
        self, groups: Iterable[tuple[StateWrite, list[Operation]]], limit: int
    ) -> Iterator[list[tuple[StateWrite, list[Operation]]]]:
        chunk: list[tuple[StateWrite, list[Operation]]] = []
        count = size = 0
        for write, operations in groups:
            cost = sum(map(operation_bytes, operations))
            too_many = count + len(operations) > limit
            if chunk and (too_many or size + cost > self._config.zookeeper_multi_max_bytes):
                yield chunk
                chunk, count, size = [], 0, 0
            chunk.append((write, operations))
            count += len(operations)
            size += cost
        if chunk:
            yield chunk


def _at_version(state: LeaderAndIsr, version: int) -> LeaderAndIsr:
    # dataclasses.replace is several times slower, and this runs for every partition of a dead broker.
    return LeaderAndIsr(state.leader, state.leader_epoch, state.isr, version, state.controller_epoch)


def operation_bytes(operation: Operation) -> int:
    """Estimate the bytes that an operation adds to a multi."""
    data = operation.data if isinstance(operation, Create | SetData) else None
    return len(operation.path) + len(data or b"") + OPERATION_OVERHEAD_BYTES
