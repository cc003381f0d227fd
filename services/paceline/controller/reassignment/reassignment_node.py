"""Read and rewrite ``/admin/reassign_partitions``, in which Kafka's tools request reassignments."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from paceline.controller.errors import UnexpectedResponseError
from paceline.controller.events import Event, PartitionReassignmentFromNode
from paceline.controller.zk_store import ZkStore, first_failure
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow
from paceline.coordination.interface import SetData, ZkCode
from paceline.model.identifiers import TopicPartition

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReassignmentNode:
    """The requests in the admin node."""

    store: ZkStore
    enqueue: Callable[[Event], None]

    def read(self) -> Flow[dict[TopicPartition, tuple[int, ...]]]:
        """Read the admin node; a node that cannot be parsed counts as empty, as in Kafka."""
        path = znodes.REASSIGN_PARTITIONS
        (response,) = yield from self.store.read_all([path])
        if not response.ok:
            return {}
        try:
            return znodes.decode_reassignment(path, response.data)
        except MalformedZnodeError as error:
            LOG.warning("malformed reassignment request ignored: error=%s", error)
            return {}

    def remove(self, unwanted: Callable[[TopicPartition, tuple[int, ...]], bool]) -> Flow[None]:
        """Remove entries from the admin node; deletes the node with the last entry, and sets its watch again."""
        path = znodes.REASSIGN_PARTITIONS
        (response,) = yield from self.store.read_all([path])
        if not response.ok:
            return
        wanted = yield from self.read()
        left = {tp: target for tp, target in wanted.items() if not unwanted(tp, target)}
        if left and left == wanted:
            return
        if not left:
            yield from self.store.delete_fenced([path])
            self.enqueue(PartitionReassignmentFromNode())
            return
        rewrite = self.store.fenced(SetData(path, znodes.encode_reassignment(left)))
        (response,) = yield from self.store.send_fenced([rewrite])
        if not response.ok and first_failure(response)[1] is not ZkCode.NO_NODE:
            raise UnexpectedResponseError(first_failure(response)[1], f"rewrite {path}")
