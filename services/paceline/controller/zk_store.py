"""Reads and fenced writes of the controller, as flows.

Every write is a multi whose first operation checks the version of ``/controller_epoch``; reads are sent
without a multi. A path is read with a watch if its later changes must become events.

Source: docs/protocol/zookeeper.md#epoch-fence; docs/protocol/zookeeper.md#watches; Kafka 2.8 KafkaZkClient.scala.
"""

import logging
from collections.abc import Iterable, Sequence

from paceline.controller.context import ControllerContext
from paceline.controller.errors import ControllerMovedError, SessionLostError, UnexpectedResponseError
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow, Zk
from paceline.coordination.interface import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Operation,
    Request,
    Response,
    SetData,
    ZkCode,
)
from paceline.model.assignment import ReplicaAssignment
from paceline.model.control import LiveBroker
from paceline.model.errors import InvalidTopicError
from paceline.model.identifiers import TopicPartition, validate_topic_name
from paceline.model.leader_and_isr import LeaderAndIsr

LOG = logging.getLogger(__name__)

TREE_ATTEMPTS = 5
"""Attempts to delete a node to which another client keeps adding children."""

WRITE_ATTEMPTS = 10
"""Attempts to rewrite a topic's node when another client writes it concurrently."""

READ_BATCH = 1_000
"""Reads sent at once; the client pipelines them."""


def send(requests: Sequence[Request]) -> Flow[list[Response]]:
    """Send requests and return their responses.

    Raises:
        SessionLostError: the session ended or the connection broke permanently.
    """
    responses: list[Response] = yield Zk(list(requests))
    for response in responses:
        if response.code in (ZkCode.SESSION_EXPIRED, ZkCode.CONNECTION_LOSS):
            raise SessionLostError(f"ZooKeeper answered {response.code.name}")
    return responses


def first_failure(response: Response) -> tuple[int, ZkCode]:
    """Return index and code of the first failed operation of a multi."""
    for index, result in enumerate(response.results):
        if result.code not in (ZkCode.OK, ZkCode.ROLLED_BACK):
            return index, result.code
    return -1, response.code


class ZkStore:
    """The controller's access to ZooKeeper; writes are fenced by the context's epoch version."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    # fenced writes

    def fenced(self, *operations: Operation) -> Multi:
        """Return a multi that applies ``operations`` only while this controller's epoch is current."""
        check = Check(znodes.CONTROLLER_EPOCH, self._context.epoch_zk_version)
        return Multi((check, *operations))

    def send_fenced(self, multis: Sequence[Multi]) -> Flow[list[Response]]:
        """Send fenced multis, pipelined; the caller handles all failures other than the fence's.

        Raises:
            ControllerMovedError: the fence failed.
        """
        responses = yield from send(multis)
        # A multi that is sent again after its answer was lost may have been applied the first time.
        if any(response.ok or response.in_doubt_before for response in responses):
            self._context.wrote_in_event = True
        for response in responses:
            if not response.ok and first_failure(response)[0] == 0:
                raise ControllerMovedError(
                    "the version of /controller_epoch changed since this controller's election",
                    may_be_applied=self._context.wrote_in_event,
                )
        return responses

    def delete_fenced(self, paths: Iterable[str]) -> Flow[None]:
        """Delete nodes, each in its own multi; a missing node is not an error.

        The nodes have no children unless another client created them. Such children are deleted too, because a
        notification or marker that cannot be deleted would block every failover.
        """
        wanted = list(paths)
        for _ in range(TREE_ATTEMPTS):
            responses = yield from self.send_fenced([self.fenced(Delete(path)) for path in wanted])
            occupied = []
            for path, response in zip(wanted, responses, strict=True):
                code = ZkCode.OK if response.ok else first_failure(response)[1]
                if code is ZkCode.NOT_EMPTY:
                    occupied.append(path)
                elif code not in (ZkCode.OK, ZkCode.NO_NODE):
                    raise UnexpectedResponseError(code, f"delete {path}")
            if not occupied:
                return
            LOG.warning("deleting unknown children: path=%s", occupied)
            wanted = []
            for path in occupied:
                wanted.extend((yield from self.tree(path)))
        raise UnexpectedResponseError(ZkCode.NOT_EMPTY, f"delete {wanted[-1]}")

    def write_topic(
        self,
        topic: str,
        topic_id: str | None,
        partitions: dict[int, ReplicaAssignment],
        version: int = ANY_VERSION,
        others: Sequence[str] = (),
    ) -> Flow[None]:
        """Rewrite a topic's node on condition of its version and the existence of ``others``."""
        path = znodes.topic_path(topic)
        data = znodes.encode_topic_assignment(znodes.TopicAssignment(partitions, topic_id))
        checks = [Check(other, ANY_VERSION) for other in others]
        (response,) = yield from self.send_fenced([self.fenced(*checks, SetData(path, data, version))])
        if not response.ok:
            raise UnexpectedResponseError(first_failure(response)[1], f"set {path}")

    def write_assignment(self, topic_partition: TopicPartition, assignment: ReplicaAssignment) -> Flow[None]:
        """Write a partition's assignment into its topic's node; keep partitions that only ZooKeeper knows yet."""
        context, topic = self._context, topic_partition.topic
        path, topic_id = znodes.topic_path(topic), context.topic_ids.get(topic)
        for _ in range(WRITE_ATTEMPTS):
            (found,) = yield from self.read_all([path])
            added = self._unknown_partitions(topic, path, found)
            partitions = {**added, **context.topics[topic], topic_partition.partition: assignment}
            version = ANY_VERSION if found.stat is None else found.stat.version
            # Check the state node, too: a re-created topic may have the node version of the deleted topic, but no
            # state.
            state = [znodes.partition_state_path(topic_partition)] if topic_partition in context.leadership else []
            try:
                yield from self.write_topic(topic, topic_id, partitions, version, state)
                return
            except UnexpectedResponseError as failure:
                if failure.code is not ZkCode.BAD_VERSION:
                    raise
        raise UnexpectedResponseError(ZkCode.BAD_VERSION, f"set {path}")

    def _unknown_partitions(self, topic: str, path: str, found: Response) -> dict[int, ReplicaAssignment]:
        """Return partitions that another tool has added and whose event may still be queued."""
        if not found.ok:
            return {}
        try:
            node = znodes.decode_topic_assignment(path, found.data)
        except MalformedZnodeError:
            return {}
        known_id = self._context.topic_ids.get(topic)
        if known_id and node.topic_id and node.topic_id != known_id:
            raise UnexpectedResponseError(ZkCode.NO_NODE, f"set {path}, which belongs to a re-created topic,")
        known = self._context.topics[topic]
        return {partition: node.partitions[partition] for partition in node.partitions if partition not in known}

    # reads

    def children(self, path: str, watch: bool) -> Flow[tuple[str, ...]]:
        """List child names; an empty list for a missing node.

        With ``watch`` a missing node is created, because ZooKeeper watches the children only of an existing node.
        """
        (response,) = yield from send([GetChildren(path, watch)])
        if watch and response.code is ZkCode.NO_NODE:
            LOG.warning("node is missing, creating it: path=%s", path)
            steps = [*znodes.parent_paths(path), path]
            yield from self.send_fenced([self.fenced(Create(step, None)) for step in steps])
            (response,) = yield from send([GetChildren(path, watch)])
        if response.ok:
            return response.children
        if response.code is ZkCode.NO_NODE:
            return ()
        raise UnexpectedResponseError(response.code, f"list {path}")

    def tree(self, root: str) -> Flow[list[str]]:
        """List a node and all its descendants, leaves first."""
        paths = [root]
        for path in paths:
            names = yield from self.children(path, watch=False)
            paths.extend(f"{path}/{name}" for name in names)
        return list(reversed(paths))

    def read_all(self, paths: Sequence[str], watch: bool = False) -> Flow[list[Response]]:
        """Read many nodes, pipelined; a missing node has the code NO_NODE."""
        found: list[Response] = []
        for start in range(0, len(paths), READ_BATCH):
            responses = yield from send([GetData(path, watch) for path in paths[start : start + READ_BATCH]])
            found.extend(responses)
        return found

    def exists(self, path: str) -> Flow[bool]:
        """Set a watch for creation, change and deletion, and return whether the node exists."""
        (response,) = yield from send([Exists(path, watch=True)])
        return response.ok

    def brokers(self) -> Flow[dict[int, LiveBroker]]:
        """Read all registrations, with watches on children and data; omits a node that is deleted during the read.

        A broker whose node ZooKeeper refuses to read keeps its known registration, because the broker is not dead.
        """
        names = yield from self.children(znodes.BROKER_IDS, watch=True)
        broker_ids = sorted(broker_id for name in names if (broker_id := znodes.parse_id(name)) is not None)
        responses = yield from self.read_all([znodes.broker_path(broker_id) for broker_id in broker_ids], watch=True)
        found = {}
        for broker_id, response in zip(broker_ids, responses, strict=True):
            if response.code is ZkCode.NO_NODE:
                continue
            if not response.ok or response.stat is None:
                LOG.error("registration not read, ZooKeeper refused: broker=%d error=%s", broker_id, response.code.name)
                if broker_id in self._context.brokers:
                    found[broker_id] = self._context.brokers[broker_id]
                continue
            try:
                registration = znodes.decode_broker(znodes.broker_path(broker_id), response.data, broker_id)
            except MalformedZnodeError as error:
                LOG.warning("ignoring broker with malformed registration: broker=%d error=%s", broker_id, error)
                continue
            found[broker_id] = registration.live_broker(response.stat.czxid)
        return found

    def topic_names(self) -> Flow[list[str]]:
        """List topics, with a watch."""
        names = yield from self.children(znodes.TOPICS, watch=True)
        return sorted(names)

    def topic_nodes(
        self, topics: Sequence[str], missing: set[str] | None = None
    ) -> Flow[dict[str, znodes.TopicAssignment]]:
        """Read topic nodes, with watches; omits malformed and unreadable nodes; adds missing nodes to ``missing``."""
        responses = yield from self.read_all([znodes.topic_path(topic) for topic in topics], watch=True)
        found = {}
        for topic, response in zip(topics, responses, strict=True):
            if not response.ok:
                if missing is not None and response.code is ZkCode.NO_NODE:
                    missing.add(topic)
                continue
            try:
                validate_topic_name(topic)
                found[topic] = znodes.decode_topic_assignment(znodes.topic_path(topic), response.data)
            except MalformedZnodeError as error:
                LOG.warning("ignoring topic with malformed node: topic=%s error=%s", topic, error)
            except InvalidTopicError as error:
                # Brokers refuse a whole request with an invalid name; the controller would then retry it forever.
                LOG.warning("ignoring topic with an invalid name: path=%s error=%s", znodes.topic_path(topic), error)
        return found

    def partition_states(
        self, topic_partitions: Sequence[TopicPartition], watch: bool = False, unread: set[TopicPartition] | None = None
    ) -> Flow[dict[TopicPartition, LeaderAndIsr]]:
        """Read state nodes; omits missing and malformed nodes; ``unread`` gets those that ZooKeeper refuses to read."""
        paths = [znodes.partition_state_path(topic_partition) for topic_partition in topic_partitions]
        responses = yield from self.read_all(paths, watch)
        found = {}
        for topic_partition, path, response in zip(topic_partitions, paths, responses, strict=True):
            if response.code is ZkCode.NO_NODE:
                continue
            if not response.ok or response.stat is None:
                LOG.error(
                    "partition state not read, ZooKeeper refused: partition=%s error=%s",
                    topic_partition, response.code.name,
                )  # fmt: skip
                if unread is not None:
                    unread.add(topic_partition)
                continue
            try:
                state = znodes.decode_partition_state(path, response.data, response.stat.version)
            except MalformedZnodeError as error:
                LOG.warning("malformed partition state: partition=%s error=%s", topic_partition, error)
                continue
            found[topic_partition] = state.leader_and_isr
            if state.extra:
                self._context.state_extras[topic_partition] = state.extra
            else:
                self._context.state_extras.pop(topic_partition, None)
        return found
