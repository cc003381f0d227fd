"""ListOffsets, OffsetsForLeaderEpoch and DeleteRecords of clients: calls whose answers need a proof of leadership.

Source: docs/protocol/replication.md#answers-without-contact.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.requests.delete_records import DeleteRecordsHandler
from paceline.broker.requests.errors import PartitionQuery, refuse_all
from paceline.broker.requests.offsets import list_offsets, offsets_for_leader_epoch
from paceline.broker.requests.proof_waits import ProofWaits
from paceline.broker.storage.replica_storage import ReplicaStorage
from paceline.model.client_io import (
    DeleteRecordsQuery,
    DeleteRecordsResult,
    EpochAnswer,
    EpochQuery,
    OffsetAnswer,
    OffsetQuery,
    PartitionFailure,
)
from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.replication.purgatory import Cancel

A = TypeVar("A")


class ProvedCalls:
    """Each call replies once, and returns a function that cancels its wait, None without a wait."""

    def __init__(
        self,
        hosted: HostedPartitions,
        storage: ReplicaStorage,
        proofs: ProofWaits,
        not_serving: Callable[[], PacelineError | None],
    ) -> None:
        """``not_serving`` returns the reason for which the broker refuses calls, None while it serves."""
        self._hosted = hosted
        self._storage = storage
        self._proofs = proofs
        self._deletes = DeleteRecordsHandler(hosted, storage)
        self._not_serving = not_serving

    def list_offsets(
        self, queries: Sequence[OffsetQuery], timeout_ms: int, reply: Callable[[list[OffsetAnswer]], None]
    ) -> Cancel | None:
        """Look up readable offsets."""
        look_up = partial(list_offsets, self._hosted, self._storage, queries)
        return self._when_proved(queries, OffsetAnswer, timeout_ms, lambda: reply(look_up()), reply)

    def offsets_for_leader_epoch(
        self, queries: Sequence[EpochQuery], timeout_ms: int, reply: Callable[[list[EpochAnswer]], None]
    ) -> Cancel | None:
        """Look up the end offsets of leader epochs for a client."""
        look_up = partial(offsets_for_leader_epoch, self._hosted, queries, from_client=True)
        return self._when_proved(queries, EpochAnswer, timeout_ms, lambda: reply(look_up()), reply)

    def delete_records(
        self,
        queries: Sequence[DeleteRecordsQuery],
        timeout_ms: int,
        reply: Callable[[list[DeleteRecordsResult]], None],
    ) -> Cancel | None:
        """Raise log start offsets; reply once, when every live replica has deleted the records or at the timeout."""
        delete = partial(self._deletes.delete, queries, timeout_ms, reply)
        return self._when_proved(queries, DeleteRecordsResult, timeout_ms, delete, reply)

    def _when_proved(
        self,
        queries: Sequence[PartitionQuery],
        answer: Callable[[TopicPartition, PartitionFailure], A],
        timeout_ms: int,
        act: Callable[[], Cancel | None],
        reply: Callable[[list[A]], None],
    ) -> Cancel | None:
        """Call ``act`` when the leaderships of the partitions are proved; refuse while the broker is not serving."""
        refused = refuse_all(self._not_serving(), queries, answer)
        if refused:
            reply(refused)
            return None
        named = (query.topic_partition for query in queries)
        return self._proofs.when_proved(named, self._hosted.now_ms(), timeout_ms, act)
