"""When a leader may answer: session 6 s, lease 9 s; every time in the table is "so many seconds ago"."""

import pytest

from paceline.replication.follower_progress import FetchClock, FollowerProgress
from paceline.replication.leadership_proof import NEVER, LeadershipProof, proved_ms

NOW_MS = 1_000_000

TABLE = """
session  controller  loop gap  regained  told   fetched   | answers | because
lives    1           -         -         500    400 400   | yes     | it was never out of contact
lives    1           -         -         500    never     | yes     | in contact, silent followers do not count
lives    9           -         -         500    never     | yes     | a lease is not over at its last moment
lives    9.1         -         -         500    400       | no      | the lease may be over
lives    9.1         -         -         500    1.9       | yes     | the only other member has fetched lately
lives    9.1         -         -         500    2.1       | no      | a third of the shorter time is lately
lives    9.1         -         -         500    1.9 2.1   | no      | one member has not
lives    9.1         -         -         500    1.9 never | no      | not fetched in this epoch at all
lives    9.1         -         -         500    -         | yes     | a sole member has no clean successor
lives    9.1         -         -         1.9    never     | yes     | the controller confirmed it lately
over     1           -         -         500    1.9       | yes     | the session is over, and all fetch
over     1           -         -         500    2.1       | no      | not lately
over     300         -         -         500    0.5 0.5   | yes     | neither for five minutes stops nothing
over     300         -         -         500    -         | yes     | nor do they stop a sole member
over     45          0         -         500    0.5       | no      | a fetch after a pause may be old
over     45          1         -         500    0.5       | yes     | a fetch that followed an answer after it
lives    1           0         -         500    400       | yes     | a short pause deposes no leader
lives    1           -         2         500    400       | no      | decisions may be on their way
lives    1           -         2         500    1.9       | yes     | all have fetched since
lives    1           -         2         1.9    400       | yes     | the controller has told it since
"""
ROWS = [[cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines()[1:]]


def ago(cell: str) -> int:
    """Return the time that a cell names, `NEVER` for none."""
    return NEVER if cell == "never" else NOW_MS - round(float(cell) * 1000)


@pytest.mark.parametrize("given, answers, because", ROWS, ids=[row[2] for row in ROWS])
def test_a_leader_answers_while_no_other_replica_can_have_been_elected(given: str, answers: str, because: str) -> None:
    session, controller, gap, regained, told, *fetched = given.split()
    proof = LeadershipProof(session_ms=6_000, lease_ms=9_000, fetch_wait_ms=500, now_ms=0)
    end_ms = NOW_MS if gap == "-" else ago(gap)
    controller_ms = ago(controller)
    for at_ms in range(0, NOW_MS + 1, 1_000):
        if gap == "-" or not end_ms - 45_000 < at_ms < end_ms:
            proof.loop_runs(at_ms)
        if at_ms <= controller_ms and (regained == "-" or not ago(regained) - 10_000 < at_ms < ago(regained)):
            proof.controller_answered(at_ms, at_ms)
    proof.controller_answered(controller_ms, controller_ms)
    proved = proved_ms(ago(told), [] if fetched == ["-"] else [ago(cell) for cell in fetched])
    since_ms = proof.since_ms(NOW_MS, session == "over")
    assert (proved is None or proved >= since_ms) is (answers == "yes"), because


def test_a_new_session_needs_a_new_proof() -> None:
    proof = LeadershipProof(6_000, 9_000, 500, 0)
    assert proof.since_ms(1_000, session_may_be_over=False) == NEVER
    proof.session_began(5_000)
    assert proof.since_ms(5_001, session_may_be_over=False) == 5_000


def test_a_heartbeat_response_counts_from_the_time_of_its_request() -> None:
    proof = LeadershipProof(6_000, 9_000, 500, 0)
    proof.controller_answered(asked_ms=1_000, now_ms=9_000)
    assert not proof.lease_may_be_over(10_000)
    assert proof.lease_may_be_over(10_001)


def test_without_leases_only_the_zookeeper_session_counts() -> None:
    proof = LeadershipProof(6_000, 0, 500, 0)
    assert proof.since_ms(60_000, session_may_be_over=False) == NEVER
    assert proof.since_ms(120_000, session_may_be_over=True) == 120_000  # the event loop did not report for a while


def test_a_fetch_counts_from_the_time_of_the_response_before_it() -> None:
    follower, clock = FollowerProgress(2), FetchClock(0)
    follower.clock = clock
    clock.fetched(100)
    assert follower.followed_ms() == NEVER
    clock.answered_ms = 150
    clock.fetched(60_000)  # It lay in the socket's buffer for a minute.
    assert follower.followed_ms() == 150


def test_a_follower_that_removes_a_partition_from_its_session_proves_no_leadership() -> None:
    follower, clock = FollowerProgress(2), FetchClock(0)
    follower.clock = clock
    clock.answered_ms = 150
    clock.fetched(200)
    follower.leave_session(0, forgotten=False)
    assert follower.followed_ms() == 150
    follower.leave_session(0, forgotten=True)
    assert follower.followed_ms() == NEVER


def test_fetches_in_an_earlier_leader_epoch_prove_no_leadership() -> None:
    follower, clock = FollowerProgress(2), FetchClock(0)
    follower.clock = clock
    clock.answered_ms = 150
    clock.fetched(200)
    follower.start_epoch(0, 300, in_isr=True, was_leader=True)
    assert follower.followed_ms() == NEVER
