"""`NamedChannel`: the calls of a client that a gateway calls for, over a connection that several clients share."""

from typing import Any

from paceline.model.identity import PRINCIPAL_KEY


class NamedChannel:
    """Names the client in each call. Has the methods of `grpc.Channel` that stubs use; `StreamCall` knows it, too.

    Attributes:
        shared: the channel; its owner closes it.
        metadata: names the client; sent with every call.
    """

    def __init__(self, shared: Any, principal: str) -> None:
        self.shared = shared
        self.metadata = ((PRINCIPAL_KEY, principal),)

    def unary_unary(self, *args: Any, **kwargs: Any) -> "_NamedMethod":
        """See `grpc.Channel`."""
        return _NamedMethod(self.shared.unary_unary(*args, **kwargs), self.metadata)

    def unary_stream(self, *args: Any, **kwargs: Any) -> "_NamedMethod":
        """See `grpc.Channel`."""
        return _NamedMethod(self.shared.unary_stream(*args, **kwargs), self.metadata)

    def stream_stream(self, *args: Any, **kwargs: Any) -> "_NamedMethod":
        """See `grpc.Channel`."""
        return _NamedMethod(self.shared.stream_stream(*args, **kwargs), self.metadata)


class _NamedMethod:
    __slots__ = ("_metadata", "_method")

    def __init__(self, method: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        self._method = method
        self._metadata = metadata

    def __call__(self, request: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        return self._method(request, timeout, self._metadata, **kwargs)

    def future(self, request: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        return self._method.future(request, timeout, self._metadata, **kwargs)
