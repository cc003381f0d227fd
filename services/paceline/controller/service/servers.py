"""Create the gRPC server of each listener of the controller, with its services."""

import secrets
from collections.abc import Callable
from typing import Final

from paceline.controller.service.acl_servicer import AclServicer
from paceline.controller.service.admin_servicer import AdminServicer
from paceline.controller.service.metadata_servicer import (
    MAX_WAITING_CALLS,
    ControllerServicer,
    MetadataServicer,
    NodeHandle,
)
from paceline.controller.standby.state_publisher import MAX_FOLLOWERS
from paceline.internal.v1 import controller_service_pb2_grpc
from paceline.model.node_description import NodeDescription
from paceline.rpc.security.transport_security import PLAINTEXT, TransportSecurity
from paceline.rpc.server import AioRpcServer, Service
from paceline.rpc.watch.watch_hub import WatchHub
from paceline.runtime.asyncio_scheduler import AsyncioScheduler
from paceline.runtime.metrics import Metrics
from paceline.runtime.node_servers import NodeServers
from paceline.runtime.settings import ControllerSettings
from paceline.v1 import acl_service_pb2_grpc, admin_service_pb2_grpc, metadata_service_pb2_grpc

CONTROL_THREADS: Final = 4 + MAX_FOLLOWERS + MAX_WAITING_CALLS
"""Each standby stream and each waiting call occupies a thread; four are left for heartbeats."""


class ControllerServers(NodeServers):
    """One server per listener: CLIENT and EXTERNAL on the event loop, CONTROL on its own threads."""

    def __init__(
        self,
        settings: ControllerSettings,
        handle: NodeHandle,
        scheduler: AsyncioScheduler,
        metrics: Metrics,
        hub: WatchHub | None = None,
        security: TransportSecurity = PLAINTEXT,
        describe_node: Callable[[], NodeDescription] | None = None,
    ) -> None:
        self._describe_node = describe_node
        self._settings = settings
        self._handle = handle
        self._scheduler = scheduler
        self._hub = hub or WatchHub(secrets.token_hex(6))
        super().__init__(settings, metrics, security)

    def _aio_server(self, name: str) -> AioRpcServer:
        keys = self._settings.keys
        admin = AdminServicer(self._handle, name, self._security.credentials("CONTROL"), keys.num_partitions)
        acls = AclServicer(self._handle)
        node_id = self._settings.keys.controller_id
        metadata = MetadataServicer(self._handle, name, node_id, self._hub, self._describe_node)
        return AioRpcServer(
            name,
            [
                Service(
                    "paceline.v1.AdminService",
                    lambda server: admin_service_pb2_grpc.add_AdminServiceServicer_to_server(admin, server),
                ),
                Service(
                    "paceline.v1.AclService",
                    lambda server: acl_service_pb2_grpc.add_AclServiceServicer_to_server(acls, server),
                ),
                Service(
                    "paceline.v1.MetadataService",
                    lambda server: metadata_service_pb2_grpc.add_MetadataServiceServicer_to_server(metadata, server),
                ),
            ],
            max_request_bytes=self._settings.keys.socket_request_max_bytes,
            observe=self._metrics.observe_request,
            with_reflection=self._settings.keys.reflection_enable,
            max_connections=self._max_connections,
            guard=self._guards[name],
            credentials=self._security.server_credentials(name),
            limits=self._metrics.listener_limits,
        )

    def _control_service(self) -> tuple[Service, int]:
        servicer = ControllerServicer(self._handle, self._scheduler.post)
        add = controller_service_pb2_grpc.add_ControllerServiceServicer_to_server
        return Service("paceline.internal.v1.ControllerService", lambda server: add(servicer, server)), CONTROL_THREADS
