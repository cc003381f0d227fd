"""Ctrl-C while a program watches a cluster."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from paceline.v1 import metadata_service_pb2 as pb
from paceline.v1.metadata_service_pb2_grpc import MetadataServiceServicer, add_MetadataServiceServicer_to_server

pytestmark = pytest.mark.timeout(60)

END_S = 20.0

INTERRUPT_INSIDE_GRPC = """
import os, signal, sys, threading
import grpc._channel

class Interrupting(threading.Condition):
    def __enter__(self):
        held = super().__enter__()
        if sys._getframe(1).f_code.co_name == "_next":  # gRPC has taken the lock of a call to read a message
            os.kill(os.getpid(), signal.SIGINT)
        return held

signal.signal(signal.SIGINT, signal.default_int_handler)
init = grpc._channel._RPCState.__init__
def with_interrupt(self, *arguments):
    init(self, *arguments)
    self.condition = Interrupting()
grpc._channel._RPCState.__init__ = with_interrupt

from paceline_client import Admin
try:
    with Admin(sys.argv[1]) as admin:
        next(admin.watch_events())
except KeyboardInterrupt:
    print("interrupted")
"""


class Silent(MetadataServiceServicer):
    """A broker and controller whose streams send nothing."""

    address = ("127.0.0.1", 0)

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def DescribeCluster(self, request: Any, context: Any) -> Any:  # noqa: N802
        host, port = self.address
        return pb.DescribeClusterResponse(
            brokers=[pb.BrokerInfo(id=1, host=host, port=port)],
            controller_id=1,
            controller_host=host,
            controller_port=port,
        )

    def WatchEvents(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        context.add_callback(self.stopped.set)
        self.stopped.wait(END_S)
        yield from ()


@pytest.fixture
def silent() -> Iterator[Silent]:
    server, servicer = grpc.server(ThreadPoolExecutor(8)), Silent()
    add_MetadataServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    servicer.address = ("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    server.start()
    yield servicer
    servicer.stopped.set()
    server.stop(None)


def test_an_interrupt_that_strikes_inside_grpcs_lock_does_not_block_the_program(silent: Silent) -> None:
    arguments = [sys.executable, "-c", INTERRUPT_INSIDE_GRPC, "{}:{}".format(*silent.address)]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=END_S, check=False)
    assert (ended.returncode, ended.stdout) == (0, "interrupted\n"), ended.stderr
