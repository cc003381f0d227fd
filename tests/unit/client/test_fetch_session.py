from paceline.model.identifiers import TopicPartition
from paceline_client.fetch_session import FetchSessionHandler, WantedPartition

A, B, C = (TopicPartition("t", index) for index in range(3))


def at(offset: int) -> WantedPartition:
    return WantedPartition("id", offset, 100, 1, None)


def open_session(*partitions: TopicPartition) -> FetchSessionHandler:
    session = FetchSessionHandler()
    session.build({tp: at(0) for tp in partitions})
    session.answered(7)
    return session


def test_the_first_fetch_names_all_partitions_and_requests_a_session() -> None:
    request = FetchSessionHandler().build({A: at(0), B: at(5)})
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert request.partitions == {A: at(0), B: at(5)}


def test_later_fetches_name_only_changed_and_removed_partitions() -> None:
    session = open_session(A, B)
    request = session.build({A: at(3), C: at(0)})
    assert (request.session_id, request.session_epoch) == (7, 1)
    assert request.partitions == {A: at(3), C: at(0)}
    assert request.forgotten == [B]


def test_epochs_count_and_wrap_to_one() -> None:
    session = open_session(A)
    for expected in (1, 2, 3):
        assert session.build({A: at(0)}).session_epoch == expected
        session.answered(7)
    session._epoch = 2**31 - 1
    session.answered(7)
    assert session.build({A: at(0)}).session_epoch == 1


def test_a_broker_without_room_for_sessions_gets_full_fetches() -> None:
    session = FetchSessionHandler()
    session.build({A: at(0)})
    session.answered(0)
    request = session.build({A: at(0)})
    assert (request.session_id, request.session_epoch, request.partitions) == (0, 0, {A: at(0)})


def test_after_a_lost_response_all_partitions_are_named_again() -> None:
    session = open_session(A, B)
    session.build({A: at(9), B: at(0)})
    session.reset()
    request = session.build({A: at(9), B: at(0)})
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert set(request.partitions) == {A, B}
