"""A gateway whose behaviour a test sets: real gRPC on loopback, logs in memory, one subscriber at a time."""

import threading
import time
from concurrent import futures
from typing import Any, Final

import grpc
from grpc_status import rpc_status

from paceline.model.errors import ErrorCode, PacelineError, error_for
from paceline.rpc.errors import to_rpc_status
from paceline.v1 import gateway_service_pb2 as v1
from paceline.v1.errors_pb2 import PartitionError
from paceline.v1.gateway_service_pb2_grpc import GatewayServiceServicer, add_GatewayServiceServicer_to_server
from paceline.v1.record_pb2 import Record

_DELIVERY: Final = 10
"""Largest number of records of one response."""
_POLL_S: Final = 0.01


class ScriptedGateway(GatewayServiceServicer):
    """Serves the topic ``topic`` with some partitions; keeps committed positions across streams."""

    def __init__(self, topic: str, partitions: int = 2) -> None:
        self.topic = topic
        self.logs: list[list[bytes]] = [[] for _ in range(partitions)]
        self.committed = [0] * partitions
        self.refused_calls: list[ErrorCode] = []
        """Errors of the next calls, one per call."""
        self.lost_answers = 0
        """Number of Publish calls that append and then fail with UNAVAILABLE."""
        self.refused_values: dict[bytes, ErrorCode] = {}
        """Errors of records with these values."""
        self.end_after: list[int] = []
        """Numbers of deliveries after which the next streams end with UNAVAILABLE; later streams do not end."""
        self.subscriptions: list[v1.Subscription] = []
        self.closed_by_caller = 0
        """Number of streams whose caller has closed its side."""
        self._next_partition = 0
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        add_GatewayServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        """Stop the server."""
        self._server.stop(0.2).wait(5.0)

    def Publish(self, request: v1.PublishRequest, context: Any) -> v1.PublishResponse:  # noqa: N802
        """Append each record to the next partition in turn."""
        self._refuse(context)
        if request.topic != self.topic:
            _abort(context, error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {request.topic}"))
        results = []
        for record in request.records or [request]:
            code = self.refused_values.get(record.value)
            if code is not None:
                results.append(
                    v1.PublishResult(error=PartitionError(code=code.value, message=f"{code.name} on purpose"))
                )
                continue
            partition, self._next_partition = self._next_partition, (self._next_partition + 1) % len(self.logs)
            results.append(v1.PublishResult(partition=partition, offset=len(self.logs[partition])))
            self.logs[partition].append(record.value)
        if self.lost_answers:
            self.lost_answers -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        return v1.PublishResponse(results=results)

    def Subscribe(self, requests: Any, context: Any) -> Any:  # noqa: N802
        """Deliver records from the committed positions on, within the credit; commit what is acknowledged."""
        self._refuse(context)
        subscription = next(requests).subscribe
        self.subscriptions.append(subscription)
        deliveries_left = self.end_after.pop(0) if self.end_after else None
        delivered, ended = list(self.committed), threading.Event()
        reader = threading.Thread(target=self._acknowledge, args=(requests, ended), daemon=True)
        reader.start()
        yield v1.SubscribeResponse(assigned=v1.PartitionsAssigned())
        while not ended.is_set() and context.is_active():
            idle = True
            for partition, log in enumerate(self.logs):
                begin = delivered[partition]
                end = min(len(log), begin + _DELIVERY)
                if begin == end:
                    continue
                if deliveries_left == 0:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the gateway stops")
                deliveries_left = None if deliveries_left is None else deliveries_left - 1
                idle, delivered[partition] = False, end
                yield self._delivery(partition, begin, end)
            time.sleep(_POLL_S if idle else 0.0)
        reader.join(5.0)

    def _delivery(self, partition: int, begin: int, end: int) -> v1.SubscribeResponse:
        log = self.logs[partition]
        records = [Record(value=log[offset], offset=offset) for offset in range(begin, end)]
        position = v1.Position(topic=self.topic, partition=partition, offset=end)
        batch = v1.DeliveredRecords(topic=self.topic, partition=partition, records=records, next=position)
        return v1.SubscribeResponse(records=batch)

    def _acknowledge(self, requests: Any, ended: threading.Event) -> None:
        try:
            for request in requests:
                for position in request.acknowledge.positions:
                    self.committed[position.partition] = max(self.committed[position.partition], position.offset)
            self.closed_by_caller += 1
        except grpc.RpcError:
            pass  # The stream has ended.
        finally:
            ended.set()

    def _refuse(self, context: Any) -> None:
        if self.refused_calls:
            _abort(context, error_for(self.refused_calls.pop(0), "on purpose"))


def _abort(context: Any, error: PacelineError) -> None:
    context.abort_with_status(rpc_status.to_status(to_rpc_status(error)))
