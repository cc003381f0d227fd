"""Long lists are returned in pages that neither repeat nor omit entries."""

from collections.abc import Callable

import pytest

from paceline.model.errors import InvalidRequestError, UnknownServerError
from paceline.rpc import pages
from paceline.rpc.pages import decode_token, encode_token, merged_pages, topics_page
from paceline.v1.metadata_service_pb2 import (
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    PartitionDescription,
    TopicDescription,
)

Ask = Callable[[DescribeTopicsRequest], DescribeTopicsResponse]


def serving(names: list[str], partitions: int = 1) -> Ask:
    def describe(name: str) -> TopicDescription:
        return TopicDescription(name=name, partitions=[PartitionDescription(partition=n) for n in range(partitions)])

    return lambda request: topics_page(request, lambda: sorted(names), describe)


def names_of(answer: DescribeTopicsResponse) -> list[str]:
    return [topic.name for topic in answer.topics]


@pytest.mark.parametrize("page_size", [0, 1, 2, 3, 7, 100])
def test_all_pages_together_are_the_whole_list(page_size: int) -> None:
    names = [f"t{number}" for number in range(7)]
    merged = merged_pages(DescribeTopicsRequest(page_size=page_size), serving(names), "topics")
    assert names_of(merged) == names and not merged.next_page_token
    wanted = ["t3", "t1", "t1", "t9"]
    asked = DescribeTopicsRequest(topics=wanted, page_size=page_size)
    assert names_of(merged_pages(asked, serving(names), "topics")) == wanted


def test_entries_added_or_removed_between_pages_neither_repeat_nor_hide_others() -> None:
    names = ["a", "c", "e", "g"]
    ask = serving(names)
    first = ask(DescribeTopicsRequest(page_size=2))
    names[:] = ["b", "e", "f", "g"]
    second = ask(DescribeTopicsRequest(page_size=10, page_token=first.next_page_token))
    assert (names_of(first), names_of(second)) == (["a", "c"], ["e", "f", "g"])


def test_a_page_ends_before_it_is_too_large_for_a_stub() -> None:
    ask = serving([f"t{number:03}" for number in range(50)], partitions=10_000)
    answer = ask(DescribeTopicsRequest())
    assert 1 < len(answer.topics) < 50 and answer.ByteSize() < 1.1 * pages.PAGE_BYTES
    assert len(merged_pages(DescribeTopicsRequest(), ask, "topics").topics) == 50


@pytest.mark.parametrize(
    "token", ["x", "!!", encode_token("a", "b"), encode_token(1), encode_token("a")[:-3], "A" * 9_000]
)
def test_a_token_of_another_call_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequestError, match="page token"):
        serving(["a"])(DescribeTopicsRequest(page_token=token))
    assert decode_token(encode_token("t", 7), str, int) == ("t", 7)


@pytest.mark.parametrize(
    "request_", [DescribeTopicsRequest(page_size=-1), DescribeTopicsRequest(topics=["a"], page_token=encode_token(2))]
)
def test_an_invalid_page_request_is_refused(request_: DescribeTopicsRequest) -> None:
    with pytest.raises(InvalidRequestError):
        serving(["a"])(request_)


def test_a_client_ends_a_list_whose_pages_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_PAGES", 3)
    endless: Ask = lambda request: DescribeTopicsResponse(next_page_token="again")  # noqa: E731
    with pytest.raises(UnknownServerError, match="3 pages"):
        merged_pages(DescribeTopicsRequest(), endless, "topics")
