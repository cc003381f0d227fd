"""Get producer ids from any broker, with increasing pauses after failures."""

import random
from collections.abc import Callable
from typing import Any, Final

import grpc

from paceline.model.errors import ClusterAuthorizationError, LeaderNotAvailableError
from paceline.rpc.channels import ChannelCache
from paceline.rpc.errors import from_rpc_error
from paceline.rpc.retry import RetryPolicy
from paceline.v1.log_service_pb2 import InitProducerIdRequest
from paceline.v1.log_service_pb2_grpc import LogServiceStub
from paceline_client.accumulator import Accumulator
from paceline_client.clock import monotonic_ms
from paceline_client.metadata import Broker
from paceline_client.metadata_refresher import MetadataRefresher

_TIMEOUT_S: Final = 5.0
_BACKOFF: Final = RetryPolicy(deadline_ms=None, max_attempts=1)


class ProducerIds:
    """Requests one id at a time for the accumulator; the caller holds the sender's lock."""

    def __init__(
        self,
        accumulator: Accumulator,
        metadata: MetadataRefresher,
        channels: ChannelCache,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        """Does not send a request yet; ``post`` runs a function on the sender's thread."""
        self._accumulator = accumulator
        self._metadata = metadata
        self._channels = channels
        self._post = post
        self._asking = False
        self.ask_again_ms = 0
        """Time of the next request, after a failed request."""
        self._attempts = 0
        self._failures = 0
        """Number of failures since the last id."""
        self._rng = random.Random()

    def ask(self, now_ms: int) -> None:
        """Send a request to the next broker unless a request is in flight or the back-off has not ended."""
        if self._asking or now_ms < self.ask_again_ms:
            return
        brokers = self._metadata.brokers()
        if not brokers:
            self._metadata.request()
            self.ask_again_ms = now_ms + 50
            return
        broker = brokers[self._attempts % len(brokers)]
        self._attempts += 1
        self._asking = True
        call = LogServiceStub(self._channels.get(broker.address)).InitProducerId.future(
            InitProducerIdRequest(), timeout=_TIMEOUT_S
        )
        call.add_done_callback(lambda done: self._post(lambda: self._take(broker, done)))

    def _take(self, broker: Broker, call: Any) -> None:
        self._asking = False
        failure = None if call.cancelled() else call.exception()
        if call.cancelled() or failure is not None:
            reason = from_rpc_error(failure) if isinstance(failure, grpc.RpcError) else failure
            if isinstance(reason, ClusterAuthorizationError):
                self._accumulator.fail_all(reason)  # a later record asks again: a rule may have been added
            error = LeaderNotAvailableError(f"{broker} gave no producer id: {reason or 'cancelled'}")
            for queue in self._accumulator.queues():
                self._accumulator.record_error(queue.topic_partition, error)
            self._failures += 1
            self.ask_again_ms = monotonic_ms() + int(_BACKOFF.backoff_ms(self._failures, self._rng))
            self._metadata.request()
            return
        self._failures = 0
        answer = call.result()
        self._accumulator.set_producer_id(answer.producer_id, answer.producer_epoch)
