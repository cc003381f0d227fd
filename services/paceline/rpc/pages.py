"""Pages of long lists (AIP-158): how servers cut and continue them, and how clients put them together again.

A token is opaque to clients. It holds the position of the last entry sent: the entry's key where the list is sorted, so
that entries which come and go meanwhile neither repeat nor hide others; an index where the request gives the order.
"""

import base64
import binascii
import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from paceline.model.errors import InvalidRequestError, UnknownServerError
from paceline.rpc.convert.common import at_least
from paceline.v1.metadata_service_pb2 import DescribeTopicsRequest, DescribeTopicsResponse, TopicDescription

PAGE_BYTES: Final = 1024 * 1024
"""A page ends when its entries have this many bytes; one entry is sent however large it is."""

MAX_TOKEN_CHARACTERS: Final = 2_048
MAX_PAGES: Final = 10_000
"""Pages that a client asks for before it gives up."""

K = TypeVar("K")
M = TypeVar("M")
A = TypeVar("A")


def encode_token(*position: str | int) -> str:
    """Return the token of a position."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode()


def decode_token(token: str, *kinds: type) -> tuple[Any, ...]:
    """Return the position in a token, whose parts have these types; an empty tuple for no token.

    Raises:
        InvalidRequestError: no server of this version made the token for this list.
    """
    if not token:
        return ()
    try:
        position = json.loads(base64.urlsafe_b64decode(token[:MAX_TOKEN_CHARACTERS].encode()))
    except (ValueError, binascii.Error, RecursionError):
        position = None
    if not isinstance(position, list) or [type(part) for part in position] != list(kinds):
        raise InvalidRequestError("the page token does not come from a response of this RPC")
    return tuple(position)


class PageLimit:
    """Counts the entries of one page."""

    def __init__(self, page_size: int) -> None:
        """Take the size that the request asks for; 0 leaves only the limit of bytes.

        Raises:
            InvalidRequestError: it is negative.
        """
        self._left = at_least(page_size, 0, "page size") or None
        self._left_bytes = PAGE_BYTES
        self.is_empty = True

    def admits(self, size_bytes: int) -> bool:
        """Count an entry of this size if it fits; return whether it does. The first one always fits."""
        if not self.is_empty and (self._left == 0 or size_bytes > self._left_bytes):
            return False
        self.is_empty = False
        self._left_bytes -= size_bytes
        if self._left is not None:
            self._left -= 1
        return True


def page_in_request_order(
    asked: Sequence[K], page_size: int, token: str, message_of: Callable[[K], M]
) -> tuple[list[M], str]:
    """Return the page of a list whose order the request gives, and the token of the next page.

    Raises:
        InvalidRequestError: the size or the token cannot be.
    """
    (start,) = decode_token(token, int) or (0,)
    if not 0 <= start <= len(asked):
        raise InvalidRequestError("the page token belongs to another request")
    messages = _filled(asked, start, page_size, message_of)
    reached = start + len(messages)
    return messages, "" if reached == len(asked) else encode_token(reached)


def page_in_key_order(
    entries: Sequence[K],
    key_of: Callable[[K], tuple[Any, ...]],
    kinds: tuple[type, ...],
    page_size: int,
    token: str,
    message_of: Callable[[K], M],
) -> tuple[list[M], str]:
    """Return the page of a list that is sorted by unique keys, and the token of the next page.

    Raises:
        InvalidRequestError: the size or the token cannot be.
    """
    after = decode_token(token, *kinds)
    start = bisect_right(entries, after, key=key_of) if after else 0
    messages = _filled(entries, start, page_size, message_of)
    reached = start + len(messages)
    return messages, "" if reached == len(entries) else encode_token(*key_of(entries[reached - 1]))


def _filled(entries: Sequence[K], start: int, page_size: int, message_of: Callable[[K], M]) -> list[M]:
    limit = PageLimit(page_size)
    messages: list[M] = []
    for index in range(start, len(entries)):
        message: Any = message_of(entries[index])
        if not limit.admits(message.ByteSize()):
            break
        messages.append(message)
    return messages


def topics_page(
    request: DescribeTopicsRequest, every_name: Callable[[], list[str]], describe: Callable[[str], TopicDescription]
) -> DescribeTopicsResponse:
    """Return one page of the topics that a request names, or of all topics, sorted by name, when it names none.

    Raises:
        InvalidRequestError: the size or the token cannot be.
    """
    if request.topics:
        topics, token = page_in_request_order(request.topics, request.page_size, request.page_token, describe)
    else:
        names = every_name()
        topics, token = page_in_key_order(
            names, lambda name: (name,), (str,), request.page_size, request.page_token, describe
        )
    return DescribeTopicsResponse(topics=topics, next_page_token=token)


def merged_pages(request: Any, ask: Callable[[Any], A], field: str) -> A:
    """Ask for every page and return the first answer with the entries of all of them in its repeated ``field``.

    Raises:
        UnknownServerError: the pages do not end.
    """
    merged: Any = ask(request)
    token = merged.next_page_token
    for _ in range(MAX_PAGES):
        if not token:
            merged.next_page_token = ""
            result: A = merged
            return result
        following = type(request)()
        following.CopyFrom(request)
        following.page_token = token
        page: Any = ask(following)
        getattr(merged, field).extend(getattr(page, field))
        token = page.next_page_token
    raise UnknownServerError(f"the list has more than {MAX_PAGES} pages")
