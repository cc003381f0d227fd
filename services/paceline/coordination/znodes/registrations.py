"""JSON of registration nodes: cluster id, brokers, controllers, the active controller and its epoch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.coordination.znodes.json_codec import (
    MAX_INT32,
    JsonObject,
    JsonValue,
    decode_decimal,
    decode_object,
    decode_text,
    encode_json,
)
from paceline.model.control import Endpoint, LiveBroker

CLIENT_LISTENER = "CLIENT"
_PLAINTEXT = "PLAINTEXT"
_ENDPOINT = re.compile(r"([A-Za-z0-9_.-]+)://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")
MAX_ENDPOINTS = 16
"""Brokers refuse control requests that name a broker with more listeners."""
_UNCLEAN_RESTART = "unclean_restart"


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """Content of ``/brokers/ids/<id>`` (docs/protocol/zookeeper.md#broker-registration-node)."""

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    timestamp_ms: int
    """Wall clock of the start, for information only."""
    rack: str | None = None
    unclean_restart: bool = False
    """Not in Kafka: whether the broker may have lost records that it had acknowledged."""
    security_protocols: Mapping[str, str] = field(default_factory=dict)
    """Protocol of each listener whose protocol is not PLAINTEXT."""

    def live_broker(self, broker_epoch: int) -> LiveBroker:
        """Return the broker as used by the cores; its epoch is the czxid of the node."""
        return LiveBroker(self.broker_id, self.endpoints, self.rack, broker_epoch, self.unclean_restart)

    @property
    def client_endpoint(self) -> Endpoint | None:
        """Host and port for Kafka's older tools: CLIENT, else the first PLAINTEXT listener."""
        for endpoint in self.endpoints:
            if endpoint.listener == CLIENT_LISTENER:
                return endpoint
        for endpoint in self.endpoints:
            if self.security_protocols.get(endpoint.listener, _PLAINTEXT) == _PLAINTEXT:
                return endpoint
        return None


@dataclass(frozen=True, slots=True)
class ControllerRegistration:
    """Content of ``/controllers/ids/<id>``; not in Kafka."""

    controller_id: int
    endpoints: tuple[Endpoint, ...]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ActiveController:
    """Content of ``/controller`` (docs/protocol/zookeeper.md#controller-nodes)."""

    controller_id: int
    timestamp_ms: int


def encode_cluster_id(cluster_id: str) -> bytes:
    """Return the data of ``/cluster/id``; its version is a string."""
    return encode_json({"version": "1", "id": cluster_id})


def decode_cluster_id(path: str, data: bytes | None) -> str:
    """Return the cluster id. Raises MalformedZnodeError."""
    node = decode_object(path, data)
    if node.string("version") != "1":
        raise node.fail("version", "not known")
    cluster_id = node.string("id")
    if not cluster_id:
        raise node.fail("id", "empty")
    return cluster_id


def encode_broker(broker: BrokerRegistration) -> bytes:
    """Return the data of a broker's node, version 5."""
    client = broker.client_endpoint
    value: dict[str, JsonValue] = {
        "version": 5,
        "host": client.host if client else None,
        "port": client.port if client else -1,
        "endpoints": [format_endpoint(endpoint) for endpoint in broker.endpoints],
        "jmx_port": -1,
        "timestamp": str(broker.timestamp_ms),
        "listener_security_protocol_map": {
            endpoint.listener: broker.security_protocols.get(endpoint.listener, _PLAINTEXT)
            for endpoint in broker.endpoints
        },
        "features": {},
    }
    if broker.rack is not None:
        value["rack"] = broker.rack
    if broker.unclean_restart:
        value[_UNCLEAN_RESTART] = True
    return encode_json(value)


def decode_broker(path: str, data: bytes | None, broker_id: int) -> BrokerRegistration:
    """Return a broker's registration of any version from 1 to 5. Raises MalformedZnodeError."""
    node = decode_object(path, data)
    node.version(1, 2, 3, 4, 5)
    protocols: dict[str, str] = {}
    if "endpoints" in node:
        endpoints = _endpoints(node)
    else:
        endpoints = (Endpoint(_PLAINTEXT, node.string("host"), node.integer("port", 1, 65_535)),)
        if not endpoints[0].host:
            raise node.fail("host", "empty")
    if "listener_security_protocol_map" in node:
        named = node.string_map("listener_security_protocol_map")
        protocols = {listener: protocol for listener, protocol in named.items() if protocol != _PLAINTEXT}
    unclean = not node.is_absent(_UNCLEAN_RESTART) and node.value(_UNCLEAN_RESTART)
    if type(unclean) is not bool:
        raise node.fail(_UNCLEAN_RESTART, "a boolean is expected")
    return BrokerRegistration(
        broker_id=broker_id,
        endpoints=endpoints,
        timestamp_ms=-1 if node.is_absent("timestamp") else node.decimal("timestamp"),
        rack=None if node.is_absent("rack") else node.string("rack"),
        unclean_restart=unclean,
        security_protocols=protocols,
    )


def encode_controller_registration(controller: ControllerRegistration) -> bytes:
    """Return the data of ``/controllers/ids/<id>``."""
    return encode_json(
        {
            "version": 1,
            "endpoints": [format_endpoint(endpoint) for endpoint in controller.endpoints],
            "timestamp": str(controller.timestamp_ms),
        }
    )


def decode_controller_registration(path: str, data: bytes | None, controller_id: int) -> ControllerRegistration:
    """Return a controller's registration. Raises MalformedZnodeError."""
    node = decode_object(path, data)
    node.version(1)
    return ControllerRegistration(controller_id, _endpoints(node), node.decimal("timestamp"))


def encode_active_controller(controller: ActiveController) -> bytes:
    """Return the data of ``/controller``."""
    return encode_json({"version": 1, "brokerid": controller.controller_id, "timestamp": str(controller.timestamp_ms)})


def decode_active_controller(path: str, data: bytes | None) -> ActiveController:
    """Return the content of ``/controller``. Raises MalformedZnodeError."""
    node = decode_object(path, data)
    node.version(1, 2)
    return ActiveController(node.integer("brokerid"), node.decimal("timestamp"))


def encode_controller_epoch(epoch: int) -> bytes:
    """Return the data of ``/controller_epoch``: plain text."""
    return str(epoch).encode("ascii")


def decode_controller_epoch(path: str, data: bytes | None) -> int:
    """Return the controller epoch: the number in the data, not the node's version. Raises MalformedZnodeError."""
    return decode_decimal(path, decode_text(path, data), 0, MAX_INT32)


def format_endpoint(endpoint: Endpoint) -> str:
    """Return ``LISTENER://host:port``, an IPv6 host in brackets."""
    return f"{endpoint.listener}://{endpoint.address}"


def parse_endpoint(text: str) -> Endpoint | None:
    """Return the endpoint in ``LISTENER://host:port``, None when the text is invalid or the port out of range."""
    match = _ENDPOINT.fullmatch(text)
    if match is None or not 0 < int(match[3]) <= 65_535:
        return None
    return Endpoint(match[1], match[2].strip("[]"), int(match[3]))


def _endpoints(node: JsonObject) -> tuple[Endpoint, ...]:
    endpoints: list[Endpoint] = []
    for text in node.strings("endpoints"):
        endpoint = parse_endpoint(text)
        if endpoint is None:
            raise node.fail("endpoints", f"{text[:80]!r} is not LISTENER://host:port")
        endpoints.append(endpoint)
    if len(endpoints) > MAX_ENDPOINTS:
        raise node.fail("endpoints", f"{len(endpoints)} listeners, at most {MAX_ENDPOINTS} are allowed")
    if len({endpoint.listener for endpoint in endpoints}) != len(endpoints):
        raise node.fail("endpoints", "a listener is named twice")
    return tuple(endpoints)
