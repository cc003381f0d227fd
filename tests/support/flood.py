"""Hundreds of hostile clients of a broker, each with its own connection.

They speak HTTP/2 over plain sockets: gRPC's client copies every message, reads all responses and has limits of its own,
so it would run out of memory first. There are four kinds: *large* clients send the largest requests that a broker
accepts, *streams* send them one after another on one stream, *giants* announce 64 MiB, *readers* request as much data
as possible and read nothing. ``python -m tests.support.flood`` prints one JSON object: the results of the calls by
kind.

Source: RFC 9113 (frames), RFC 7541 (headers, as literals), gRPC over HTTP/2.
"""

import argparse
import asyncio
import json
import re
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass

from paceline.v1 import log_service_pb2 as pb

MIB = 1 << 20
GIANT_BYTES = 64 * MIB
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
_END_STREAM, _ACK, _END_HEADERS = 0x1, 0x1, 0x4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_INITIAL_WINDOW, _FRAME_BYTES = 65_535, 16_384
_SETTING_INITIAL_WINDOW = 4
_PAUSE_S = 0.2
_NAMES = {
    0: "OK",
    3: "INVALID_ARGUMENT",
    8: "RESOURCE_EXHAUSTED",
    12: "UNIMPLEMENTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
}


def _frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    return b"\x10" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def _request_headers(path: str) -> bytes:
    fields = [(":path", path), (":authority", "flood"), ("te", "trailers"), ("content-type", "application/grpc")]
    return b"\x83\x86" + b"".join(_literal(name, value) for name, value in fields)  # POST, http


@dataclass(eq=False)
class _Call:
    """A call on its own connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    takes_answers: bool = True
    connection_window: int = _INITIAL_WINDOW
    stream_window: int = _INITIAL_WINDOW

    def __post_init__(self) -> None:
        self.room = asyncio.Event()
        self.initial_window = _INITIAL_WINDOW

    async def begin(self, path: str) -> None:
        self.writer.write(
            _PREFACE + _frame(_SETTINGS, 0, 0) + _frame(_HEADERS, _END_HEADERS, 1, _request_headers(path))
        )
        await self.writer.drain()

    async def send_for_ever(self, body: memoryview) -> None:
        """Send the message repeatedly, without end."""
        while True:
            await self.send(body, is_last=False)

    async def send(self, body: memoryview, is_last: bool = True) -> None:
        """Send the message as fast as the server's windows allow."""
        at = 0
        while at < len(body):
            size = min(_FRAME_BYTES, len(body) - at, self.connection_window, self.stream_window)
            if size <= 0:
                self.room.clear()
                await self.room.wait()
                continue
            last = is_last and at + size == len(body)
            self.writer.write(_frame(_DATA, _END_STREAM if last else 0, 1, body[at : at + size]))
            await self.writer.drain()
            self.connection_window -= size
            self.stream_window -= size
            at += size

    async def outcome(self) -> str:
        """Read the server's frames until the call ends; return its status."""
        while True:
            head = await self.reader.readexactly(9)
            payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:9], "big") & 0x7FFFFFFF
            if kind == _WINDOW_UPDATE:
                self._widen(stream, int.from_bytes(payload, "big"))
            elif kind == _SETTINGS and not flags & _ACK:
                self._take_settings(payload)
            elif kind == _PING and not flags & _ACK:
                self.writer.write(_frame(_PING, _ACK, 0, payload))
            elif kind == _DATA and self.takes_answers and payload:
                update = struct.pack(">I", len(payload))
                self.writer.write(_frame(_WINDOW_UPDATE, 0, 0, update) + _frame(_WINDOW_UPDATE, 0, 1, update))
            elif kind == _HEADERS and flags & _END_STREAM:
                status = re.search(rb"grpc-status.(\d+)", payload, re.DOTALL)
                return _NAMES.get(int(status[1]), f"status {status[1].decode()}") if status else "ended"
            elif kind == _RST_STREAM:
                return "reset"
            elif kind == _GOAWAY:
                return "refused connection"

    def _widen(self, stream: int, size: int) -> None:
        if stream == 0:
            self.connection_window += size
        else:
            self.stream_window += size
        self.room.set()

    def _take_settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            setting, value = struct.unpack_from(">HI", payload, at)
            if setting == _SETTING_INITIAL_WINDOW:
                self.stream_window += value - self.initial_window
                self.initial_window = value
                self.room.set()
        self.writer.write(_frame(_SETTINGS, _ACK, 0))


class Flood:
    """Runs the clients against one address for a limited time."""

    def __init__(self, address: str, topic: str, seconds: float) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._until = time.monotonic() + seconds
        self.ends: dict[str, Counter[str]] = {}
        large = pb.ProduceRequest(partitions=[pb.ProducePartition(topic=topic, batch=bytes(4 * MIB - 1_024))])
        self._large = memoryview(_message(large.SerializeToString()))
        # The announced length is enough for a refusal; the rest of the message never ends.
        self._giant = memoryview(b"\0" + struct.pack(">I", GIANT_BYTES) + bytes(MIB))
        fetch = pb.FetchRequest(
            max_wait_ms=1_000,
            max_bytes=55 * MIB,
            format=pb.FETCH_FORMAT_BATCHES,
            partitions=[pb.FetchPartition(topic=topic, fetch_offset=0, max_bytes=55 * MIB)],
        )
        self._fetch = memoryview(_message(fetch.SerializeToString()))

    async def run(self, large: int, giants: int, readers: int, streams: int = 0) -> None:
        """Run the given number of clients of each kind until the time is over."""
        await asyncio.gather(
            *(self._again_and_again("large", "Produce", self._large) for _ in range(large)),
            *(self._again_and_again("stream", "ProduceStream", self._large) for _ in range(streams)),
            *(self._again_and_again("giant", "Produce", self._giant) for _ in range(giants)),
            *(self._again_and_again("reader", "Fetch", self._fetch, takes_answers=False) for _ in range(readers)),
        )

    async def _again_and_again(self, kind: str, method: str, body: memoryview, takes_answers: bool = True) -> None:
        ends = self.ends.setdefault(kind, Counter())
        while time.monotonic() < self._until:
            try:
                async with asyncio.timeout(max(self._until - time.monotonic(), 0.1)):
                    ends[await self._once(method, body, takes_answers)] += 1
            except TimeoutError:
                ends["still under way"] += 1
            except asyncio.IncompleteReadError:
                ends["connection ended"] += 1
            except OSError as failure:
                ends[type(failure).__name__] += 1
            await asyncio.sleep(_PAUSE_S)

    async def _once(self, method: str, body: memoryview, takes_answers: bool) -> str:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        call = _Call(reader, writer, takes_answers)
        sending: asyncio.Task[None] | None = None
        try:
            await call.begin(f"/paceline.v1.LogService/{method}")
            sends = call.send_for_ever(body) if method.endswith("Stream") else call.send(body)
            sending = asyncio.create_task(sends)
            return await call.outcome()
        finally:
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            writer.transport.abort()


def _message(body: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(body)) + body


def main() -> int:
    """Run the flood and print its results."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.flood", description=__doc__)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--large", type=int, default=120)
    parser.add_argument("--giants", type=int, default=30)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--streams", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=15.0)
    arguments = parser.parse_args()
    flood = Flood(arguments.address, arguments.topic, arguments.seconds)
    asyncio.run(flood.run(arguments.large, arguments.giants, arguments.readers, arguments.streams))
    print(json.dumps(flood.ends))
    return 0


if __name__ == "__main__":
    sys.exit(main())
