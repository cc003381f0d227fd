"""The broker's listeners, with the services and the kind of server of each."""

import secrets
from collections.abc import Callable

from paceline.broker.service.calls_in_progress import ByteBudget, FetchWaits
from paceline.broker.service.group_servicer import GROUP_SERVICE, GroupServicer
from paceline.broker.service.internal_servicer import REPLICATION_SERVICE, ReplicaManagerServicer, ReplicationServicer
from paceline.broker.service.log_servicer import LOG_SERVICE, LogServicer
from paceline.broker.service.metadata_servicer import MetadataServicer
from paceline.broker.service.node_handle import NodeHandle
from paceline.broker.service.record_codec import RecordCodec
from paceline.broker.service.response_memory import AnswerBudget
from paceline.internal.v1 import replica_manager_service_pb2_grpc
from paceline.model.node_description import NodeDescription
from paceline.rpc.admission.receive_limiter import ReceiveLimiter
from paceline.rpc.security.transport_security import PLAINTEXT, TransportSecurity
from paceline.rpc.server import AioRpcServer, Service
from paceline.rpc.streams.stream_server import MAX_STREAMS
from paceline.rpc.watch.watch_hub import WatchHub
from paceline.runtime.asyncio_scheduler import AsyncioScheduler
from paceline.runtime.metrics import Metrics
from paceline.runtime.node_servers import NodeServers
from paceline.runtime.settings import BrokerSettings
from paceline.v1 import group_service_pb2_grpc, metadata_service_pb2_grpc

CONTROL_THREADS = 4
_FETCHER_STREAMS = 1_000
"""Maximum streams of replica fetchers: each follower has ``num.replica.fetchers``."""


class BrokerServers(NodeServers):
    """One server per listener: CLIENT, EXTERNAL and REPLICATION on the event loop, CONTROL on its own threads."""

    def __init__(
        self,
        settings: BrokerSettings,
        core: NodeHandle,
        scheduler: AsyncioScheduler,
        metrics: Metrics,
        node_id: Callable[[], int],
        hub: WatchHub | None = None,
        security: TransportSecurity = PLAINTEXT,
        describe_node: Callable[[], NodeDescription] | None = None,
    ) -> None:
        self._describe_node = describe_node
        self._settings = settings
        self._core = core
        self._scheduler = scheduler
        self._node_id = node_id
        self._hub = hub or WatchHub(secrets.token_hex(6))
        self._budget = ByteBudget(settings.keys.queued_max_request_bytes)
        self._answers = AnswerBudget(settings.keys.queued_max_response_bytes)
        self._limiter = ReceiveLimiter()
        self.fetch_waits = FetchWaits(settings.keys.max_waiting_fetches_per_connection)
        self._record_codec = RecordCodec()
        super().__init__(settings, metrics, security)

    async def stop(self, grace_s: float) -> None:
        """Stop every server, CONTROL last, then the threads that encode records."""
        await super().stop(grace_s)
        self._record_codec.close()

    def _aio_server(self, name: str) -> AioRpcServer:
        keys = self._settings.keys
        replication = name == "REPLICATION"
        return AioRpcServer(
            name,
            self._replication_services() if replication else self._client_services(name),
            max_request_bytes=keys.replication_request_max_bytes if replication else keys.socket_request_max_bytes,
            observe=self._metrics.observe_request,
            with_reflection=keys.reflection_enable and not replication,
            max_streams=_FETCHER_STREAMS if replication else MAX_STREAMS,
            max_connections=self._max_connections,
            receive_buffer_bytes=keys.socket_receive_buffer_bytes,
            guard=self._guards[name],
            credentials=self._security.server_credentials(name),
            limiter=None if replication else self._limiter,
            limits=self._metrics.listener_limits,
        )

    def _client_services(self, name: str) -> list[Service]:
        fetch_max_bytes = self._settings.keys.fetch_max_bytes
        log = LogServicer(
            self._core,
            name,
            self._scheduler,
            self._budget,
            self._answers,
            fetch_max_bytes,
            self._record_codec,
            self.fetch_waits,
            self._metrics.listener_limits,
        )
        groups = GroupServicer(self._core, name, self._limiter.turns)
        metadata = MetadataServicer(self._core, name, self._node_id, self._hub, self._describe_node)
        return [
            Service(LOG_SERVICE, log.add_to),
            Service(
                GROUP_SERVICE,
                lambda server: group_service_pb2_grpc.add_GroupServiceServicer_to_server(groups, server),
            ),
            Service(
                "paceline.v1.MetadataService",
                lambda server: metadata_service_pb2_grpc.add_MetadataServiceServicer_to_server(metadata, server),
            ),
        ]

    def _replication_services(self) -> list[Service]:
        servicer = ReplicationServicer(self._core)
        return [
            Service(REPLICATION_SERVICE, servicer.add_to),
        ]

    def _control_service(self) -> tuple[Service, int]:
        servicer = ReplicaManagerServicer(self._core, self._scheduler.post)
        add = replica_manager_service_pb2_grpc.add_ReplicaManagerServiceServicer_to_server
        service = Service("paceline.internal.v1.ReplicaManagerService", lambda server: add(servicer, server))
        return service, CONTROL_THREADS
