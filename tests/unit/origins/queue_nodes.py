"""The children of one ZooKeeper node as a state-change queue needs them, on the in-memory server."""

from collections.abc import Sequence

from paceline.coordination.interface import Create, Delete, GetChildren, GetData
from tests.unit.controller.cluster import Cluster


class ZooKeeperNodes:
    """Implements `origins.state_change_queue.SequentialNodes`; every instance sees the same durable children."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self._cluster = cluster
        self._path = f"/brokers/state/{broker_id}"
        for path in ("/brokers/state", self._path):
            cluster.zk(Create(path), must_succeed=False)

    def append(self, data: bytes) -> str:
        path = self._cluster.zk(Create(f"{self._path}/", data, sequential=True)).path
        assert path is not None
        return path.rpartition("/")[2]

    def names(self) -> Sequence[str]:
        return self._cluster.zk(GetChildren(self._path)).children

    def read(self, name: str) -> bytes | None:
        return self._cluster.zk(GetData(f"{self._path}/{name}")).data

    def delete(self, name: str) -> None:
        self._cluster.zk(Delete(f"{self._path}/{name}"), must_succeed=False)
