"""Check the evidence on which a controller suspects a broker, and the write that must precede the deletion of data."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from paceline.controller.brokers.broker_suspicions import FIRST_DAMPING_MS, BrokerSuspicions, Evidence
from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.node import ControllerNode
from paceline.coordination import znodes
from paceline.model.control import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from paceline.model.identifiers import TopicPartition
from tests.simulation.verdicts import Verdicts

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster

_ENOUGH: Final = (Evidence.REFUSED, Evidence.NOT_REGISTERED)
"""Evidence that needs no follower's report, defined here independently of the code under test."""


class SuspicionChecks:
    """K14 and K16."""

    def __init__(self, cluster: "SimulatedCluster", verdicts: Verdicts) -> None:
        self._cluster = cluster
        self._verdicts = verdicts
        self._refuted_ms: dict[tuple[BrokerSuspicions, int], int] = {}
        self._weak: dict[tuple[BrokerSuspicions, int], int] = {}
        """Broker epoch of the evidence that still needs a follower's report."""
        self._reports: dict[tuple[BrokerSuspicions, int], frozenset[int]] = {}

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Check, while open, each suspicion, each heartbeat of a suspected broker, and each deletion of a replica."""
        found, heard = BrokerSuspicions.found, BrokerSuspicions.heartbeat_received
        cleared, beat, stopped = BrokerSuspicions.clear, ControllerNode.broker_heartbeat, RequestBatch.add_stop_replica

        def probed_found(one: BrokerSuspicions, broker_id: int, broker_epoch: int, evidence: Evidence) -> None:
            known = one._context.brokers.get(broker_id)
            current = known is not None and known.broker_epoch == broker_epoch
            if current and evidence not in _ENOUGH:
                self._weak[one, broker_id] = broker_epoch
            before = dict(one._suspected)
            found(one, broker_id, broker_epoch, evidence)
            if one._enabled:
                sure = current and evidence in _ENOUGH
                self._judge(one, before, broker_id if sure else None, evidence is Evidence.NOT_REGISTERED)

        def probed_heard(one: BrokerSuspicions, broker_id: int, broken_leaders: Iterable[int] = ()) -> None:
            before = dict(one._suspected)
            self._weak.pop((one, broker_id), None)
            self._reports[one, broker_id] = frozenset(broken_leaders)
            heard(one, broker_id, tuple(broken_leaders))
            if broker_id in before:
                self._verdicts.check(
                    "K14", broker_id not in one._suspected, f"broker {broker_id} is suspected after its heartbeat"
                )
                self._refuted_ms[one, broker_id] = one._scheduler.now_ms()
                before.pop(broker_id)
            self._judge(one, before, None, False)

        def probed_beat(node: ControllerNode, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
            suspicions, broker = (
                node._components.liveness.suspicions,
                node._components.context.brokers.get(request.broker_id),
            )
            newer = broker is not None and request.broker_epoch > broker.broker_epoch
            suspected = suspicions.is_suspected(request.broker_id)
            answer = beat(node, request)
            if newer and suspected and node.is_active:
                self._verdicts.check(
                    "K14",
                    suspicions.is_suspected(request.broker_id),
                    f"a newer registration refutes the death of broker {request.broker_id}",
                )
            return answer

        def probed_clear(one: BrokerSuspicions) -> None:
            cleared(one)
            for kept in (self._refuted_ms, self._weak, self._reports):
                for key in [key for key in kept if key[0] is one]:
                    del kept[key]

        def probed_stop(
            batch: RequestBatch, broker_ids: Iterable[int], topic_partition: TopicPartition, delete: bool
        ) -> None:
            if delete:
                self._deletes(batch, topic_partition)
            stopped(batch, broker_ids, topic_partition, delete)

        BrokerSuspicions.found = probed_found  # type: ignore[assignment, method-assign]
        BrokerSuspicions.heartbeat_received = probed_heard  # type: ignore[assignment, method-assign]
        BrokerSuspicions.clear = probed_clear  # type: ignore[assignment, method-assign]
        ControllerNode.broker_heartbeat = probed_beat  # type: ignore[assignment, method-assign]
        RequestBatch.add_stop_replica = probed_stop  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            BrokerSuspicions.found = found  # type: ignore[method-assign]
            BrokerSuspicions.heartbeat_received = heard  # type: ignore[method-assign]
            BrokerSuspicions.clear = cleared  # type: ignore[method-assign]
            ControllerNode.broker_heartbeat = beat  # type: ignore[method-assign]
            RequestBatch.add_stop_replica = stopped  # type: ignore[method-assign]

    def _judge(
        self, one: BrokerSuspicions, before: dict[int, str], with_evidence: int | None, is_certain: bool
    ) -> None:
        """Check newly suspected brokers; ``with_evidence`` is a broker with enough evidence."""
        self._verdicts.exercise("K14")
        brokers, now_ms = one._context.brokers, one._scheduler.now_ms()
        for broker_id in one._suspected:
            if broker_id in before:
                continue
            known = brokers.get(broker_id)
            reported = any(
                owner is one
                and broker_id in leaders
                and follower != broker_id
                and not one._leases.has_expired(follower)
                for (owner, follower), leaders in self._reports.items()
            )
            weak = known is not None and self._weak.get((one, broker_id)) == known.broker_epoch
            enough = broker_id == with_evidence or (weak and reported)
            self._verdicts.check("K14", enough, f"broker {broker_id} is suspected without enough evidence")
            if is_certain and broker_id == with_evidence:
                continue
            limit = max(1, len(brokers) // 3)
            self._verdicts.check(
                "K14", len(before) < limit, f"{sorted(one._suspected)} of {len(brokers)} are suspected"
            )
            refuted_ms = self._refuted_ms.get((one, broker_id))
            rested = refuted_ms is None or now_ms - refuted_ms >= FIRST_DAMPING_MS
            self._verdicts.check("K14", rested, f"broker {broker_id} is suspected again soon after a heartbeat")

    def _deletes(self, batch: RequestBatch, topic_partition: TopicPartition) -> None:
        """Check that a controller that was deposed without knowing it deletes no data."""
        tree, topic = self._cluster.server.tree, topic_partition.topic
        marked = tree.get(f"{znodes.DELETE_TOPICS}/{topic}") is not None or tree.get(znodes.topic_path(topic)) is None
        self._verdicts.check(
            "K16",
            marked or batch._context.wrote_in_event,
            f"{topic_partition} is deleted without a fenced write before and without a marker",
        )
