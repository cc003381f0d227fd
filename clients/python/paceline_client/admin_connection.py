"""Choose the server for `Admin` calls: any process for reads, the active controller for changes.

Retry rule: a change whose result is unknown is not sent again.
"""

import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

import grpc

from paceline.model.addresses import address_of
from paceline.model.errors import (
    ErrorCode,
    NotControllerError,
    PacelineError,
    RequestTimedOutError,
    error_for,
)
from paceline.model.tls import CA_FILE, TlsFiles
from paceline.rpc.channels import ChannelCache
from paceline.rpc.errors import ConnectionBrokenError, from_rpc_error, is_retriable, is_unconnected
from paceline.rpc.pages import merged_pages
from paceline.rpc.retry import RetryPolicy, call_with_retry
from paceline.rpc.security.client_tls import client_credentials
from paceline.v1.admin_service_pb2_grpc import AdminServiceStub
from paceline.v1.metadata_service_pb2 import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
)
from paceline.v1.metadata_service_pb2_grpc import MetadataServiceStub
from paceline_client.addresses import ZOOKEEPER_PORT, advised, by_cause, parse_bootstrap
from paceline_client.clock import monotonic_ms
from paceline_client.connections import Connections
from paceline_client.errors import BootstrapError, ClientClosedError, NoConnectionError, sendable
from paceline_client.throttle import Throttles
from paceline_client.wait_notice import Wait, wait_notice

T = TypeVar("T")

DEFAULT_TIMEOUT_MS: Final = 60_000
DESCRIBE_TIMEOUT_MS: Final = 15_000
ONE_CALL_S: Final = 5.0
_QUOTA_EXCEEDED: Final = int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
_MAX_TIME_SHARES: Final = 3
"""The remaining time is divided by at most this number; if more addresses hang, later addresses get less time."""
_ADMIN_GRACE_S: Final = 2.0
"""The controller may use the whole timeout of an admin call; the RPC deadline is this much later."""


class AdminConnection:
    """Finds a server that answers, follows the active controller, and retries calls where that is safe."""

    def __init__(
        self,
        bootstrap: str | Iterable[str] | Connections,
        *,
        default_timeout_ms: int = DEFAULT_TIMEOUT_MS,
        describe_timeout_ms: int = DESCRIBE_TIMEOUT_MS,
        tls: TlsFiles | None = None,
        connect_timeout_ms: int | None = None,
        controller_timeout_ms: int | None = None,
    ) -> None:
        """Create an admin client; it connects on the first call.

        Args:
            bootstrap: ``"host:port,host:port"`` or a list, brokers or controllers; dead servers are skipped. Or shared
                connections.
            default_timeout_ms: longest wait of calls that change something.
            describe_timeout_ms: longest wait of read-only calls.
            tls: certificate files; default: the files in ``PACELINE_SSL_CA_FILE`` etc., otherwise plaintext.
            connect_timeout_ms: longest wait while no address accepts a connection; default: the timeout of the call.
            controller_timeout_ms: longest wait for an active controller; default: the timeout of the call.

        Raises:
            InvalidRequestError: the addresses cannot be parsed, or a certificate file cannot be used.
        """
        self._shares = isinstance(bootstrap, Connections)
        self._bootstrap = bootstrap.addresses if isinstance(bootstrap, Connections) else parse_bootstrap(bootstrap)
        self._timeout_ms = default_timeout_ms
        self._describe_timeout_ms = describe_timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._controller_timeout_ms = controller_timeout_ms
        if isinstance(bootstrap, Connections):
            self._channels = bootstrap.channels
        else:
            self._channels = ChannelCache(tls=client_credentials(tls))
        self._controller = self._last_known = self._contacts = ""
        self._throttles = Throttles()
        self._known: list[str] = []
        self._closed = False

    def _anywhere(
        self,
        call: Callable[[Any, float], T],
        timeout_ms: int | None,
        knows: Callable[[T], bool] = lambda _answer: True,
    ) -> T:
        """Send a read-only call to each address in turn; return the first response for which ``knows`` is true.

        Without such a response, return the first response.

        A broker that is starting, or that no controller has reached, has no brokers and no topics in its metadata.
        """
        limit_ms = self._describe_timeout_ms if timeout_ms is None else timeout_ms
        with wait_notice(f"an answer from {', '.join(self._addresses())}") as wait:
            return self._ask_each(call, limit_ms, knows, wait)

    def _addresses(self) -> list[str]:
        return list(dict.fromkeys([*self._known, *self._bootstrap]))

    def _ask_each(
        self,
        call: Callable[[Any, float], T],
        limit_ms: int,
        knows: Callable[[T], bool],
        wait: Wait,
    ) -> T:
        # Keep the TLS failure of an address: a later attempt may only say that another IP of the host refused.
        tls_causes: dict[str, str] = {}
        began = time.monotonic()

        def round_of_addresses(left_s: float | None) -> T:
            causes: dict[str, str] = {}
            ignorant: list[T] = []
            connected = False
            addresses = self._addresses()
            deadline = time.monotonic() + (left_s or ONE_CALL_S)
            for index, address in enumerate(addresses):
                # Limit the time of each address, so that a server that hangs leaves time for the next.
                share_s = max(0.001, deadline - time.monotonic()) / min(len(addresses) - index, _MAX_TIME_SHARES)
                try:
                    answer = call(self._channel(address), min(share_s, ONE_CALL_S))
                    if knows(answer):
                        return answer
                    ignorant.append(answer)
                except grpc.RpcError as failure:
                    error = named(address, failure)
                    if not error.retriable and error.code is not ErrorCode.UNKNOWN_SERVER_ERROR:
                        raise error from failure
                    cause = str(from_rpc_error(failure))
                    if CA_FILE in cause and tls_causes.get(address) != ZOOKEEPER_PORT:
                        tls_causes[address] = advised(address, cause)
                    causes[address] = tls_causes.get(address, cause)
                    connected = connected or not is_unconnected(failure)
                    wait.failed(error)
            if ignorant:
                return ignorant[0]
            patience_ms = self._connect_timeout_ms
            is_over = patience_ms is not None and not connected and time.monotonic() - began >= patience_ms / 1000
            raise (NoConnectionError if is_over else BootstrapError)(f"no address answered: {by_cause(causes)}")

        return call_with_retry(RetryPolicy(deadline_ms=limit_ms), round_of_addresses, on_retry=wait.failed)

    def _on_controller(self, call: Callable[[Any, float], T], timeout_ms: int, only_reads: bool = False) -> T:
        """Call the active controller, also after it has changed; a read-only call is always safe to retry."""
        with wait_notice("the active controller") as wait:
            if self._controller_timeout_ms is not None:
                self._await_controller(self._controller_timeout_ms, wait)
            return self._follow_controller(call, timeout_ms, only_reads, wait)

    def _change(self, method: str, request: Any, timeout_ms: int | None) -> Any:
        """Send a request of `AdminService` that changes something to the active controller."""
        with sendable():
            request.timeout_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        return self._on_controller(
            lambda channel, left_s: getattr(AdminServiceStub(channel), method)(request, timeout=left_s),
            request.timeout_ms,
        )

    def _change_topics(self, method: str, request: Any, timeout_ms: int | None) -> list[Any]:
        """Send a request that creates or deletes partitions; return its results by topic.

        Topics that the caller's quota refuses are sent again after the pause, as long as the time is enough.
        """
        deadline_ms = monotonic_ms() + (self._timeout_ms if timeout_ms is None else timeout_ms)
        results: dict[str, Any] = {}
        while True:
            left_ms = deadline_ms - monotonic_ms()
            pause_ms = self._throttles.left_ms("", monotonic_ms())
            if pause_ms < left_ms:
                time.sleep(pause_ms / 1_000)
            elif results:
                return list(results.values())
            answer = self._change(method, request, max(left_ms - pause_ms, 1) if timeout_ms != 0 else 0)
            self._throttles.note("", answer.throttle_ms, monotonic_ms())
            results.update((each.name, each) for each in answer.topics)
            refused = {each.name for each in answer.topics if int(each.error.code) == _QUOTA_EXCEEDED}
            if not refused:
                return list(results.values())
            again = [one for one in request.topics if (one if isinstance(one, str) else one.name) in refused]
            del request.topics[:]
            request.topics.extend(again)

    @property
    def throttle_time_ms(self) -> int:
        """Time for which controllers have asked this client to wait, because it was above a quota."""
        return self._throttles.total_ms

    def _list(self, method: str, request: Any, timeout_ms: int | None, entries: str) -> Any:
        """Send a request of `AdminService` that only reads to the active controller; merge the pages of ``entries``."""
        with sendable():
            request.timeout_ms = self._describe_timeout_ms if timeout_ms is None else timeout_ms

        def call(channel: Any, left_s: float) -> Any:
            ask = getattr(AdminServiceStub(channel), method)
            return merged_pages(request, lambda page: ask(page, timeout=left_s), entries)

        return self._on_controller(call, request.timeout_ms, only_reads=True)

    def _follow_controller(self, call: Callable[[Any, float], T], timeout_ms: int, only_reads: bool, wait: Wait) -> T:
        not_active: NotControllerError | None = None

        def attempt(left_s: float | None) -> T:
            nonlocal not_active
            try:
                address = self._controller or self._find_controller(min(left_s or ONE_CALL_S, ONE_CALL_S), wait)
            except NotControllerError as refusal:
                not_active = refusal
                raise
            except BootstrapError:
                if not_active is None:
                    raise
                raise not_active from None  # A server has answered; the time left was too short for another call.
            try:
                return call(self._channel(address), (left_s or timeout_ms / 1000) + _ADMIN_GRACE_S)
            except grpc.RpcError as failure:
                self._controller = ""
                error = named(f"controller at {address}", failure)
                wait.failed(error)
                if isinstance(error, NotControllerError):
                    self._controller = error.metadata.get("address", "")
                    raise error from failure
                if isinstance(error, ConnectionBrokenError) and not only_reads:
                    raise RequestTimedOutError(f"{error}; it is unknown whether the change was made") from failure
                raise error from failure

        def again(error: BaseException) -> bool:
            return not isinstance(error, RequestTimedOutError) and is_retriable(error)

        return call_with_retry(RetryPolicy(deadline_ms=timeout_ms), attempt, should_retry=again, on_retry=wait.failed)

    def _await_controller(self, limit_ms: int, wait: Wait) -> None:
        """Return when an active controller answers.

        Raises:
            NotControllerError: none answered within ``limit_ms``; the message has what the brokers know.
        """

        problem: PacelineError | None = None

        def attempt(left_s: float | None) -> None:
            nonlocal problem
            limit_s = min(left_s or ONE_CALL_S, ONE_CALL_S)
            try:
                address = self._controller or self._find_controller(limit_s, wait)
                self._controller = ""
                answer = describe_cluster_once(self._channel(address), limit_s)
                if answer.node_id != answer.controller_id:
                    raise NotControllerError(f"controller {self._last_known} is not active any more")
                self._controller = address
            except grpc.RpcError as failure:
                problem = named(f"controller {self._last_known} does not answer", failure)
                raise problem from failure
            except BootstrapError:
                if problem is None:
                    raise
                raise problem from None  # A broker has answered; the time left was too short for another call.

        try:
            call_with_retry(RetryPolicy(deadline_ms=limit_ms), attempt, on_retry=wait.failed)
        except PacelineError as error:
            if isinstance(error, BootstrapError) or not is_retriable(error):
                raise
            raise NotControllerError(
                f"no active controller for {limit_ms / 1000:g} s: {error}{self._contacts}"
            ) from error

    def _find_controller(self, timeout_s: float, wait: Wait) -> str:
        answer = self._ask_each(describe_cluster_once, int(timeout_s * 1000), _names_controller, wait)
        self._known = [address_of(info.host, info.port) for info in answer.brokers]
        self._contacts = _contacts_of(answer)
        if not _names_controller(answer):
            raise NotControllerError("no controller is active")
        self._controller = address_of(answer.controller_host, answer.controller_port)
        self._last_known = f"{answer.controller_id} of epoch {answer.controller_epoch} at {self._controller}"
        return self._controller

    def _channel(self, address: str) -> Any:
        if self._closed:
            raise ClientClosedError("the admin client is closed")
        return self._channels.get(address)

    def close(self) -> None:
        """Close the connections, unless they are shared."""
        self._closed = True
        if not self._shares:
            self._channels.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def describe_cluster_once(channel: Any, timeout_s: float) -> DescribeClusterResponse:
    """Read the cluster description from one process."""
    answer: DescribeClusterResponse = MetadataServiceStub(channel).DescribeCluster(
        DescribeClusterRequest(), timeout=timeout_s
    )
    return answer


def described_topics(request: DescribeTopicsRequest) -> Callable[[Any, float], DescribeTopicsResponse]:
    """Return a call that reads the descriptions of topics from one process, page by page."""

    def call(channel: Any, timeout_s: float) -> DescribeTopicsResponse:
        ask = MetadataServiceStub(channel).DescribeTopics
        answer: DescribeTopicsResponse = merged_pages(request, lambda page: ask(page, timeout=timeout_s), "topics")
        return answer

    return call


def names_in(names: Iterable[str]) -> list[str]:
    """Return a list of names, also for a single name."""
    return [names] if isinstance(names, str) else list(names)


def names_anybody(answer: DescribeClusterResponse) -> bool:
    """Return whether a response lists a broker or the active controller."""
    return bool(answer.brokers) or _names_controller(answer)


def _names_controller(answer: DescribeClusterResponse) -> bool:
    return bool(answer.controller_host and answer.controller_port)


def _contacts_of(answer: DescribeClusterResponse) -> str:
    """Return the end of an error: when a server last had an answer of a controller, and its connection to ZooKeeper."""
    if not answer.HasField("zookeeper_connected"):
        return ""
    silent_s = answer.controller_silent_ms / 1000
    heard = f"last had an answer of an active controller {silent_s:.0f} s ago and " if silent_s else ""
    return f"; server {answer.node_id} {heard}is{'' if answer.zookeeper_connected else ' not'} connected to ZooKeeper"


def named(who: str, failure: grpc.RpcError) -> PacelineError:
    """Return the error of a failed call, with the server's name in its message."""
    error = from_rpc_error(failure)
    named = type(error)(f"{who}: {error}").with_metadata(**error.metadata)
    named.__cause__ = failure
    return named


def error_in(entry: Any) -> PacelineError | None:
    """Return the error of an entry of a response, None on success."""
    return error_for(entry.error.code, entry.error.message) if entry.HasField("error") else None


class Result(Protocol):
    """An entry of a response."""

    @property
    def error(self) -> PacelineError | None:
        """Error of the entry, None on success."""


R = TypeVar("R", bound=Result)


def checked(results: list[R], raise_errors: bool) -> list[R]:
    """Return the results, or raise the first error."""
    if raise_errors:
        for result in results:
            if result.error is not None:
                raise result.error
    return results
