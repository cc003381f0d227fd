"""`StreamReader`: iterate over a gRPC stream without entering gRPC's locks from the caller's thread."""

import queue
import threading
from typing import Any, Final

_END: Final = object()


class StreamReader:
    """Reads the messages of a call on a daemon thread, one for each `next`.

    An interrupt in the main thread can strike when gRPC has just taken the lock of a call to read a message. The lock
    then stays locked, and closing the channel waits for ever. A `SimpleQueue` has no such moment.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._wanted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="paceline-stream", daemon=True).start()

    def __iter__(self) -> "StreamReader":
        return self

    def __next__(self) -> Any:
        """Return the next message; the deadline of the call bounds the wait. Do not call it again after the end.

        Raises:
            Exception: the error of the call, as a rule a `grpc.RpcError`.
        """
        self._wanted.put(None)
        arrived = self._arrived.get()
        if isinstance(arrived, Exception):
            raise arrived
        if arrived is _END:
            raise StopIteration
        return arrived

    def cancel(self) -> None:
        """Cancel the call and end the thread."""
        self._wanted.put(_END)
        self._call.cancel()

    def _read(self) -> None:
        arrived = None
        while arrived is not _END and self._wanted.get() is not _END:
            try:
                arrived = next(self._call, _END)
            except Exception as failure:
                self._arrived.put(failure)
                return
            self._arrived.put(arrived)
