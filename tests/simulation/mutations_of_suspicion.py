"""Mutations of the guards of suspicion, restarted brokers and deletions, for `mutants`."""

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.broker.membership import registration
from paceline.controller.brokers.broker_suspicions import BrokerSuspicions, Evidence
from paceline.controller.election.controller_election import ControllerElection
from paceline.controller.reassignment.reassignment_steps import ReassignmentSteps
from paceline.coordination import znodes
from paceline.coordination.flow import Flow, Zk
from paceline.coordination.interface import ANY_VERSION, Multi, SetData

if TYPE_CHECKING:
    from tests.simulation.mutants import Patches


def _without_versions(flow: Flow[Any], path_prefix: str) -> Flow[Any]:
    """Run a flow whose multis write nodes below a path without version conditions."""
    answer: Any = None
    while True:
        try:
            step = flow.send(answer)
        except StopIteration as stop:
            return stop.value
        if isinstance(step, Zk):
            step = Zk([_unconditional(request, path_prefix) for request in step.requests])
        answer = yield step


def _unconditional(request: Any, path_prefix: str) -> Any:
    if not isinstance(request, Multi):
        return request
    return Multi(
        tuple(
            replace(one, version=ANY_VERSION) if isinstance(one, SetData) and one.path.startswith(path_prefix) else one
            for one in request.operations
        )
    )


def registration_without_fence(patches: "Patches") -> None:
    """A broker replaces the present registration of its id, even a newer one."""
    real = registration.register_broker

    def register(*args: Any) -> Flow[Any]:
        return (yield from _without_versions(real(*args), "/broker_epochs/"))

    patches.set(registration, "register_broker", register)


def replace_any_controller(patches: "Patches") -> None:
    """A standby replaces the present active controller, even another one than the dead controller."""
    real = ControllerElection.replace_dead

    def replace_dead(self: ControllerElection, controller_id: int, _epoch: int) -> Flow[Any]:
        epoch, _ = yield from self._read_epoch()
        return (yield from _without_versions(real(self, controller_id, epoch), znodes.CONTROLLER_EPOCH))

    patches.set(ControllerElection, "replace_dead", replace_dead)


def evidence_of_any_registration(patches: "Patches") -> None:
    """Evidence about an earlier registration counts against the present registration."""
    real = BrokerSuspicions.found

    def found(self: BrokerSuspicions, broker_id: int, broker_epoch: int, evidence: Evidence) -> None:
        broker = self._context.brokers.get(broker_id)
        real(self, broker_id, broker_epoch if broker is None else broker.broker_epoch, evidence)

    patches.set(BrokerSuspicions, "found", found)


def no_limit(patches: "Patches") -> None:
    """The number of suspected brokers has no limit."""
    real = BrokerSuspicions._suspect

    def suspect(self: BrokerSuspicions, broker_id: int, evidence: str, is_certain: bool) -> None:
        others = {one: words for one, words in self._suspected.items() if one != broker_id}
        for one in others:
            del self._suspected[one]
        real(self, broker_id, evidence, is_certain)
        self._suspected.update(others)

    patches.set(BrokerSuspicions, "_suspect", suspect)


def no_damping(patches: "Patches") -> None:
    """A broker is suspected again immediately after a false suspicion."""
    real = BrokerSuspicions.heartbeat_received

    def heard(self: BrokerSuspicions, broker_id: int, broken_leaders: Collection[int] = ()) -> None:
        real(self, broker_id, broken_leaders)
        self._damped_until_ms.clear()

    patches.set(BrokerSuspicions, "heartbeat_received", heard)


def weak_evidence_is_enough(patches: "Patches") -> None:
    """Evidence that needs a follower's report counts without a report."""
    patches.set(Evidence, "is_conclusive", property(lambda _self: True))


def reports_never_end(patches: "Patches") -> None:
    """A follower's report counts after its connection works again."""
    real = BrokerSuspicions.heartbeat_received

    def heard(self: BrokerSuspicions, broker_id: int, broken_leaders: Collection[int] = ()) -> None:
        kept = self._broken_fetches.get(broker_id, frozenset())
        real(self, broker_id, sorted({*kept, *broken_leaders}))

    patches.set(BrokerSuspicions, "heartbeat_received", heard)


def heartbeat_refutes_nothing(patches: "Patches") -> None:
    """A suspected broker stays suspected after a heartbeat."""
    patches.set(BrokerSuspicions, "heartbeat_received", lambda _self, _broker_id, _leaders=(): None)


def deletion_without_a_write(patches: "Patches") -> None:
    """The end of a reassignment deletes data before this controller has written a node in the event."""
    real = ReassignmentSteps._stop_replicas

    def move_leader(*_: Any) -> Flow[None]:
        return
        yield

    def stop_replicas(self: ReassignmentSteps, topic_partition: Any, broker_ids: Any) -> Flow[None]:
        self.batch.new_batch()
        self.batch.add_stop_replica(broker_ids, topic_partition, delete=True)
        self.batch.send()
        yield from real(self, topic_partition, broker_ids)

    patches.set(ReassignmentSteps, "_move_leader", move_leader)
    patches.set(ReassignmentSteps, "_stop_replicas", stop_replicas)
