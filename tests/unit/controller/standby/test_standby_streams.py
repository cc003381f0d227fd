"""The streams that keep standbys warm: broken, idle, slow, and those of a controller that resigns."""

import pytest

from paceline.controller.standby.standby import SILENCE_MS, Phase, _Stream
from paceline.controller.standby.state_publisher import HEARTBEAT_MS
from paceline.controller.standby.takeover import TakeoverKind
from paceline.model.errors import InvalidTransitionError
from paceline.model.leader_and_isr import LeaderAndIsr
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster
from tests.unit.controller.warm_standby import STANDBY, THIRD, die, knows_what_is_there, pair


def test_a_broken_stream_is_opened_again_and_the_copy_is_kept() -> None:
    cluster, standby = pair()
    cluster.streams.cut = True
    cluster.time.run_for(SILENCE_MS + 5_000)
    assert not standby.is_warm
    assert standby._standby.mirror is not None
    cluster.streams.cut = False
    cluster.time.run_for(2_000)
    assert standby.is_warm
    assert cluster.streams.opened == [STANDBY, STANDBY]


def test_a_stream_that_goes_back_to_an_earlier_phase_is_an_error_of_its_own_type() -> None:
    stream = _Stream()
    stream.enter(Phase.FOLLOWING)
    with pytest.raises(InvalidTransitionError, match="does not precede"):
        stream.enter(Phase.LOADING)
    assert stream.phase is Phase.FOLLOWING


def test_many_standbys_keep_their_streams() -> None:
    cluster = Cluster()
    standbys = [STANDBY + number for number in range(8)]
    for controller_id in (CONTROLLER_ID, *standbys):
        cluster.start_controller(controller_id)
    cluster.time.run_for(60_000)
    assert sorted(cluster.streams.opened) == standbys, "no standby ends the stream of another"
    assert all(cluster.controllers[controller_id].is_warm for controller_id in standbys)


def test_a_copy_from_a_broken_stream_is_used_when_its_sequence_is_current() -> None:
    cluster, _ = pair()
    cluster.streams.cut = True
    cluster.time.run_for(SILENCE_MS + 5_000)
    die(cluster)
    assert cluster.takeovers[-1].states.kind is TakeoverKind.WARM


def test_attempts_to_follow_a_controller_pause_longer_each_time_and_end_with_its_epoch() -> None:
    cluster, standby = pair()
    cluster.streams.cut = True
    cluster.time.run_for(SILENCE_MS + 10_000)
    attempts = 0
    follow = cluster.streams.follow

    def counted(*args):  # type: ignore[no-untyped-def]
        nonlocal attempts
        attempts += 1
        return follow(*args)

    cluster.streams.follow = counted  # type: ignore[method-assign]
    cluster.time.run_for(10_000)
    assert 7 <= attempts <= 14, "about one message a second"
    die(cluster)
    attempts = 0
    cluster.time.run_for(10_000)
    assert attempts == 0 and standby.is_active


@pytest.mark.parametrize("what", ["a gap", "a repetition", "an old epoch"])
def test_an_update_of_another_sequence_or_epoch_ends_the_stream(what: str) -> None:
    cluster, standby = pair()
    core = standby._standby
    stream = core._stream
    assert stream is not None and core.mirror is not None
    before = core.mirror
    update = {"a gap": 5, "a repetition": -1, "an old epoch": 0}[what]
    from paceline.model.standby import StateUpdate, TopicStates

    epoch = 0 if what == "an old epoch" else standby._standby.mirror.controller_epoch  # type: ignore[union-attr]
    lie = {"a": TopicStates(before.topics["a"].topic_id, {0: LeaderAndIsr(9, 9, (9,), 9, 9)})}
    core._on_update(stream, StateUpdate(stream.expected + update, epoch, sequence=99, topics=lie))
    assert not standby.is_warm
    assert before.topics["a"].states[0].leader == 1 and before.sequence != 99
    cluster.time.run_for(2_000)
    assert standby.is_warm


def test_an_idle_controller_sends_messages_to_its_standbys() -> None:
    cluster, standby = pair()
    stream = standby._standby._stream
    assert stream is not None
    heard = stream.expected
    cluster.time.run_for(5 * HEARTBEAT_MS)
    assert stream.expected >= heard + 4
    cluster.time.run_for(10 * SILENCE_MS)
    assert standby._standby._stream is stream, "it never counts as dead"


def test_a_standby_that_does_not_keep_up_is_dropped() -> None:
    cluster, _ = pair()
    active = cluster.controllers[CONTROLLER_ID]

    class Full:
        ended = False

        def put(self, update: object) -> bool:
            return False

        def end(self) -> None:
            self.ended = True

    sink = Full()
    active.follow_state(THIRD, sink)
    assert sink.ended
    assert len(active._components.publisher._followers) == 1


def test_a_controller_that_resigns_ends_its_streams() -> None:
    cluster, standby = pair()
    active = cluster.controllers[CONTROLLER_ID]
    active._event_handler.resign("a test wants it")
    cluster.settle()
    assert not active._components.publisher._followers
    assert not standby.is_warm


def test_a_controller_that_resigned_follows_its_successor() -> None:
    cluster, standby = pair()
    old = cluster.controllers[CONTROLLER_ID]
    client = cluster.controller_clients[CONTROLLER_ID]
    cluster.server.expire(client.session_id)
    cluster.time.run_for(3_000)
    assert standby.is_active and not old.is_active
    assert old.is_warm and not standby.is_warm
    cluster.kill_broker(1)
    cluster.settle()
    die(cluster, STANDBY)
    assert old.is_active and cluster.takeovers[-1].states.kind is TakeoverKind.WARM
    assert knows_what_is_there(cluster, old)


def test_a_snapshot_requested_during_an_event_is_sent_after_the_event() -> None:
    cluster, _ = pair()
    active = cluster.controllers[CONTROLLER_ID]
    publisher = active._components.publisher
    publisher.event_begins()
    third = cluster.start_controller(THIRD)
    assert not third.is_warm
    publisher.event_ends()
    cluster.settle()
    assert third.is_warm
