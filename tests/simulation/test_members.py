"""Members of groups in the simulator know which assignment their coordinator has stored."""

from collections.abc import Callable
from typing import Any

import pytest

from paceline.broker.groups.requests import JoinedMember, JoinResult, SyncResult
from paceline.model.consumer_protocol import Assignment, Subscription, encode_assignment, encode_subscription
from paceline.model.errors import CoordinatorNotAvailableError
from paceline_client.assignors import RangeAssignor
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.members import TOPIC, Member, MemberSlot
from tests.simulation.profile import draw_profile
from tests.simulation.world import World

SYNCED = SyncResult("consumer", "range", encode_assignment(Assignment({TOPIC: (0, 1, 2)})))


@pytest.mark.parametrize(("answer", "known"), [(SYNCED, 3), (CoordinatorNotAvailableError("full disk"), 1)])
def test_a_new_process_of_a_static_leader_knows_only_assignments_that_were_stored(
    answer: SyncResult | CoordinatorNotAvailableError, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no member assigns partitions that were added before a process ended: it may skip its assignment."""
    world = World(1)
    slot = MemberSlot(SimulatedCluster(world, draw_profile(world)), "m", "g", RangeAssignor(), is_static=True)
    slot.start()
    leader = slot.member
    assert leader is not None
    leader.stored_by, leader.partition_counts[TOPIC] = 1, 3
    asked: list[Callable[[Any], None]] = []
    monkeypatch.setattr(Member, "_ask", lambda _self, _ask, done, *_: asked.append(done))
    joined = JoinedMember("m-1", "m", encode_subscription(Subscription((TOPIC,), b"", {}, None)))
    leader._sync(JoinResult("m-1", 2, "consumer", "range", "m-1", (joined,)))
    asked[0](answer)
    slot.crash()
    slot.start()
    assert slot.member is not None and slot.member._last_assigned_by == known
