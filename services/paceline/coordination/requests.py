"""Validate requests before sending, and collect the answers of a batch."""

import re
from collections.abc import Callable

from paceline.coordination.interface import Create, GetMany, Multi, Operation, Request, Response, SetData, ZkCode

MAX_REQUEST_BYTES = 1024 * 1024 - 4096
"""Maximum request size. A server closes the connection on a request above ``jute.maxbuffer`` (1 MiB), after which a
patient client would send it again, forever; so it is refused before sending."""

_PATH = re.compile("(?:/(?!\\.\\.?(?:/|\\Z))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+")
_OVERHEAD_BYTES = 64


def is_valid_path(path: str) -> bool:
    """Whether ZooKeeper accepts this path: absolute, no empty, ``.`` or ``..`` names, no control characters."""
    return path == "/" or _PATH.fullmatch(path) is not None


def is_sendable(request: Request | Operation) -> bool:
    """Whether a server could apply the request; if not, clients answer ``BAD_ARGUMENTS`` themselves."""
    if isinstance(request, Multi):
        return all(_has_valid_path(operation) for operation in request.operations) and (
            sum(map(_size_bytes, request.operations)) <= MAX_REQUEST_BYTES
        )
    if isinstance(request, GetMany):
        return all(map(is_valid_path, request.paths)) and sum(map(_path_bytes, request.paths)) <= MAX_REQUEST_BYTES
    return _has_valid_path(request) and _size_bytes(request) <= MAX_REQUEST_BYTES


def _has_valid_path(request: Request | Operation) -> bool:
    if isinstance(request, Multi | GetMany):
        return False
    if isinstance(request, Create) and request.sequential:
        return is_valid_path(request.path + "0")
    return is_valid_path(request.path)


def _size_bytes(request: Request | Operation) -> int:
    if isinstance(request, Multi | GetMany):
        return MAX_REQUEST_BYTES + 1
    data = request.data if isinstance(request, Create | SetData) else None
    return _path_bytes(request.path) + (len(data) if data else 0)


def _path_bytes(path: str) -> int:
    return _OVERHEAD_BYTES + (len(path) if path.isascii() else 4 * len(path))


class Batch:
    """The answers to the requests of one `submit`, delivered together when the last has arrived."""

    __slots__ = ("_on_done", "_remaining", "_responses")

    def __init__(self, count: int, on_done: Callable[[list[Response]], None]) -> None:
        self._responses: list[Response] = [_UNANSWERED] * count
        self._remaining = count
        self._on_done = on_done

    def answer(self, index: int, response: Response) -> None:
        """Store the answer to one request; the last answer triggers the callback."""
        self._responses[index] = response
        self._remaining -= 1
        if self._remaining == 0:
            self._on_done(self._responses)


_UNANSWERED = Response(ZkCode.OTHER)
