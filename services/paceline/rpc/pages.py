"""Split long lists into pages on servers, and merge the pages on clients (AIP-158).

A token is opaque to clients. In a sorted list it contains the key of the last entry sent, so that entries added or
removed between two pages neither repeat nor hide other entries. In a list in request order it contains an index.
"""

import base64
import binascii
import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from paceline.model.acls import Operation, ResourceType
from paceline.model.errors import InvalidRequestError, UnknownServerError
from paceline.rpc.convert.common import at_least
from paceline.rpc.security.authorizer import current_call
from paceline.rpc.security.rpc_needs import Need
from paceline.v1.metadata_service_pb2 import DescribeTopicsRequest, DescribeTopicsResponse, TopicDescription

PAGE_BYTES: Final = 1024 * 1024
"""Maximum number of bytes of the entries of one page; the first entry is sent whatever its size."""

MAX_TOKEN_CHARACTERS: Final = 2_048
MAX_PAGES: Final = 10_000
"""Maximum number of pages that a client requests of one list."""

_DESCRIBE: Final = Need(Operation.DESCRIBE, ResourceType.TOPIC)

K = TypeVar("K")
M = TypeVar("M")
A = TypeVar("A")


def encode_token(*position: str | int) -> str:
    """Return a token that contains a position."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode()


def decode_token(token: str, *kinds: type) -> tuple[Any, ...]:
    """Return the position in a token, whose parts must have these types; an empty tuple for an empty token.

    Raises:
        InvalidRequestError: the token does not come from a response of this RPC.
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
        """Limit the page to ``page_size`` entries and `PAGE_BYTES`; 0 means that only the bytes are limited.

        Raises:
            InvalidRequestError: ``page_size`` is negative.
        """
        self._left = at_least(page_size, 0, "page size") or None
        self._left_bytes = PAGE_BYTES
        self.is_empty = True

    def admit(self, size_bytes: int) -> bool:
        """Count an entry of this size if it fits, and return whether it fits. The first entry always fits."""
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
    """Return a page of a list in the order of the request, and the token of the next page.

    Raises:
        InvalidRequestError: the page size or the token is invalid.
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
    """Return a page of a list that is sorted by unique keys, and the token of the next page.

    Raises:
        InvalidRequestError: the page size or the token is invalid.
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
        if not limit.admit(message.ByteSize()):
            break
        messages.append(message)
    return messages


def topics_page(
    request: DescribeTopicsRequest, every_name: Callable[[], list[str]], describe: Callable[[str], TopicDescription]
) -> DescribeTopicsResponse:
    """Return one page of the requested topics, or of all topics sorted by name if the request names no topic.

    All topics are those that the caller may describe, so that neither a page nor a token shows other names.

    Raises:
        InvalidRequestError: the page size or the token is invalid.
    """
    if request.topics:
        topics, token = page_in_request_order(request.topics, request.page_size, request.page_token, describe)
    else:
        call = current_call()
        names = [name for name in every_name() if call.allows(_DESCRIBE, name)]
        topics, token = page_in_key_order(
            names, lambda name: (name,), (str,), request.page_size, request.page_token, describe
        )
    return DescribeTopicsResponse(topics=topics, next_page_token=token)


def merged_pages(request: Any, ask: Callable[[Any], A], field: str) -> A:
    """Request every page and return the first response with the entries of all pages in its repeated ``field``.

    Raises:
        UnknownServerError: the list has more than `MAX_PAGES` pages.
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
