"""Find a group's coordinator and call it."""

import time
from typing import Any, Final

import grpc

from paceline.model.addresses import address_of
from paceline.model.errors import (
    CoordinatorNotAvailableError,
    ErrorCode,
    PacelineError,
)
from paceline.rpc.channels import ChannelCache
from paceline.rpc.errors import from_rpc_error, is_retriable
from paceline.rpc.retry import RetryPolicy, call_with_retry
from paceline.v1.group_service_pb2 import FindCoordinatorRequest
from paceline.v1.group_service_pb2_grpc import GroupServiceStub
from paceline_client.metadata_refresher import MetadataRefresher

_ONE_CALL_S: Final = 5.0
_MOVED: Final = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.SHUTTING_DOWN}
_SAME_COORDINATOR: Final = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.THROTTLED}


class GroupCoordinator:
    """Calls to the coordinator of one group; thread-safe."""

    def __init__(self, group_id: str, metadata: MetadataRefresher, channels: ChannelCache) -> None:
        self.group_id = group_id
        self._metadata = metadata
        self._channels = channels
        self._address = ""
        """Address of the coordinator, empty when it is not known."""

    def stub(self, timeout_s: float) -> GroupServiceStub:
        """Return the coordinator's stub; looks the coordinator up when it is not known.

        Raises:
            PacelineError: no broker returned the coordinator.
        """
        address = self._address or self._find(timeout_s)
        return GroupServiceStub(self._channels.get(address))

    def call(self, method: str, request: Any, timeout_ms: float, sends_again: bool = True) -> Any:
        """Call the coordinator and return its response; retry unless ``sends_again`` is False.

        A retry looks the coordinator up again when the group has moved.

        Raises:
            PacelineError: the coordinator refused, or the deadline expired; the message has the last cause. It is not
                ``definite`` if any attempt may have been carried out.
        """
        may_be_done = False

        def attempt(left_s: float | None) -> Any:
            nonlocal may_be_done
            left = timeout_ms / 1000 if left_s is None else left_s
            stub = self.stub(left)
            try:
                return getattr(stub, method)(request, timeout=max(0.001, min(left, timeout_ms / 1000)))
            except grpc.RpcError as failure:
                error = self.failed(failure)
                may_be_done = may_be_done or not error.definite
                raise error from failure

        try:
            return call_with_retry(
                RetryPolicy(deadline_ms=int(timeout_ms), max_attempts=None if sends_again else 1), attempt
            )
        except PacelineError as error:
            # This is the last error that names a cause; another attempt than this one may have been carried out.
            error.definite = not may_be_done
            raise

    def failed(self, failure: grpc.RpcError) -> PacelineError:
        """Return the error of a failed call; forget the coordinator when it has moved or is unreachable."""
        error = from_rpc_error(failure)
        if (error.retriable and error.code not in _SAME_COORDINATOR) or error.code in _MOVED:
            self._address = ""
        return error

    def _find(self, timeout_s: float) -> str:
        brokers = self._metadata.wait_for_brokers(timeout_s)
        causes: list[PacelineError] = []
        deadline = time.monotonic() + timeout_s
        for broker in brokers:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                answer = GroupServiceStub(self._channels.get(broker.address)).FindCoordinator(
                    FindCoordinatorRequest(group_id=self.group_id), timeout=min(left, _ONE_CALL_S)
                )
            except grpc.RpcError as failure:
                error = from_rpc_error(failure)
                if not is_retriable(error):
                    raise error from failure
                causes.append(error)
                if error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                    break  # another broker would return the same error
                continue
            self._address = address = address_of(answer.host, answer.port)
            return address
        self._metadata.request()
        cause = causes[-1] if causes else "no answer"
        raise CoordinatorNotAvailableError(f"the coordinator of group {self.group_id} was not found: {cause}")
