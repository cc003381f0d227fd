"""ZooKeeper's tree of nodes in memory: applies each write completely or not at all, and returns its changes.

Order of checks and numbering follow PrepRequestProcessor and DataTree of ZooKeeper 3.9.
tests/integration/test_zookeeper_differential.py compares them with a real server.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.coordination.interface import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Multi,
    Operation,
    Response,
    SetData,
    Stat,
    WatchType,
    ZkCode,
)
from paceline.coordination.requests import is_sendable


@dataclass(slots=True)
class Node:
    """A node of the tree."""

    data: bytes | None
    czxid: int
    mzxid: int
    ephemeral_owner: int = 0
    version: int = 0
    children_created: int = 0
    """Number of children ever created, used for sequential names; the visible cversion also counts deletions."""
    children: set[str] = field(default_factory=set)

    def stat(self) -> Stat:
        """Return the node's Stat."""
        return Stat(
            czxid=self.czxid,
            version=self.version,
            mzxid=self.mzxid,
            cversion=2 * self.children_created - len(self.children),
            ephemeral_owner=self.ephemeral_owner,
            num_children=len(self.children),
        )


@dataclass(frozen=True, slots=True)
class Change:
    """A node that was created, deleted or given new data; for watches and auditors."""

    type: WatchType
    path: str
    old_version: int | None
    """None for a creation."""
    new_version: int | None
    """None for a deletion."""
    old_data: bytes | None
    new_data: bytes | None
    multi_index: int | None = None
    """Index within its multi."""


class _RefusedError(Exception):
    def __init__(self, code: ZkCode) -> None:
        super().__init__(code)
        self.code = code


def parent_of(path: str) -> str:
    """Return the parent's path."""
    return path.rpartition("/")[0] or "/"


class DataTree:
    """All nodes. Every write takes its zxid and returns its response with its changes."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {"/": Node(data=b"", czxid=0, mzxid=0)}
        self._ephemerals: dict[int, set[str]] = {}
        self._undo: list[Callable[[], None]] = []
        self._changes: list[Change] = []
        self.read_only: set[str] = set()
        """Paths of nodes whose writes are refused, as by an ACL."""
        self.unreadable: set[str] = set()
        """Paths of nodes whose data and children cannot be read."""

    def get(self, path: str) -> Node | None:
        """Return a node for reading."""
        return self._nodes.get(path)

    def children(self, path: str) -> tuple[str, ...] | None:
        """Return the names of a node's children, sorted; None when there is no such node."""
        node = self._nodes.get(path)
        return None if node is None else tuple(sorted(node.children))

    def paths(self) -> list[str]:
        """Return every path, sorted."""
        return sorted(self._nodes)

    def apply(self, request: Operation | Multi, session_id: int, zxid: int) -> tuple[Response, list[Change]]:
        """Apply a write at ``zxid``; a refused write changes nothing."""
        if not is_sendable(request):
            return Response(ZkCode.BAD_ARGUMENTS), []
        self._undo, self._changes = [], []
        if isinstance(request, Multi):
            return self._multi(request, session_id, zxid), self._changes
        try:
            return self._one(request, session_id, zxid, None), self._changes
        except _RefusedError as refused:
            return Response(refused.code), []

    def remove_ephemerals(self, session_id: int) -> list[Change]:
        """Delete the nodes of a session that has ended."""
        self._undo, self._changes = [], []
        for path in sorted(self._ephemerals.get(session_id, ())):
            self._delete(Delete(path), None)
        self._ephemerals.pop(session_id, None)
        return self._changes

    def _multi(self, request: Multi, session_id: int, zxid: int) -> Response:
        results: list[Response] = []
        for index, operation in enumerate(request.operations):
            try:
                results.append(self._one(operation, session_id, zxid, index))
            except _RefusedError as refused:
                for undo in reversed(self._undo):
                    undo()
                self._changes = []
                rolled_back = [Response(ZkCode.ROLLED_BACK)] * len(request.operations)
                rolled_back[index] = Response(refused.code)
                return Response(refused.code, results=tuple(rolled_back))
        return Response(ZkCode.OK, results=tuple(results))

    def _one(self, operation: Operation, session_id: int, zxid: int, index: int | None) -> Response:
        if operation.path in self.read_only and self._needs_permission(operation):
            raise _RefusedError(ZkCode.OTHER)
        match operation:
            case Create():
                return self._create(operation, session_id, zxid, index)
            case SetData():
                return self._set_data(operation, zxid, index)
            case Delete():
                return self._delete(operation, index)
            case Check():
                self._expect_version(operation.path, operation.version)
                return Response(ZkCode.OK)

    def _needs_permission(self, operation: Operation) -> bool:
        """Whether the server reads an access list for this operation; a missing node has none."""
        return isinstance(operation, Create) or (not isinstance(operation, Check) and operation.path in self._nodes)

    def _create(self, create: Create, session_id: int, zxid: int, index: int | None) -> Response:
        parent_path = parent_of(create.path)
        parent = self._nodes.get(parent_path)
        if create.path == "/" and not create.sequential:
            raise _RefusedError(ZkCode.NODE_EXISTS)
        if parent is None:
            raise _RefusedError(ZkCode.NO_NODE)
        path = f"{create.path}{parent.children_created:010d}" if create.sequential else create.path
        if path in self._nodes:
            raise _RefusedError(ZkCode.NODE_EXISTS)
        if parent.ephemeral_owner:
            raise _RefusedError(ZkCode.NO_CHILDREN_FOR_EPHEMERALS)
        node = Node(create.data, czxid=zxid, mzxid=zxid, ephemeral_owner=session_id if create.ephemeral else 0)
        self._attach(path, node)
        parent.children_created += 1

        def undo() -> None:
            self._detach(path)
            parent.children_created -= 1

        self._undo.append(undo)
        self._changes.append(Change(WatchType.CREATED, path, None, 0, None, create.data, index))
        return Response(ZkCode.OK, path=path)

    def _set_data(self, set_data: SetData, zxid: int, index: int | None) -> Response:
        node = self._expect_version(set_data.path, set_data.version)
        before = (node.data, node.version, node.mzxid)

        def undo() -> None:
            node.data, node.version, node.mzxid = before

        self._undo.append(undo)
        node.data, node.version, node.mzxid = set_data.data, node.version + 1, zxid
        self._changes.append(
            Change(WatchType.DATA_CHANGED, set_data.path, before[1], node.version, before[0], set_data.data, index)
        )
        return Response(ZkCode.OK, stat=node.stat())

    def _delete(self, delete: Delete, index: int | None) -> Response:
        if delete.path == "/":
            raise _RefusedError(ZkCode.BAD_ARGUMENTS)
        node = self._expect_version(delete.path, delete.version)
        if node.children:
            raise _RefusedError(ZkCode.NOT_EMPTY)
        self._detach(delete.path)
        self._undo.append(lambda: self._attach(delete.path, node))
        self._changes.append(Change(WatchType.DELETED, delete.path, node.version, None, node.data, None, index))
        return Response(ZkCode.OK)

    def _expect_version(self, path: str, version: int) -> Node:
        node = self._nodes.get(path)
        if node is None:
            raise _RefusedError(ZkCode.NO_NODE)
        if version not in (ANY_VERSION, node.version):
            raise _RefusedError(ZkCode.BAD_VERSION)
        return node

    def _attach(self, path: str, node: Node) -> None:
        self._nodes[path] = node
        self._nodes[parent_of(path)].children.add(path.rpartition("/")[2])
        if node.ephemeral_owner:
            self._ephemerals.setdefault(node.ephemeral_owner, set()).add(path)

    def _detach(self, path: str) -> None:
        node = self._nodes.pop(path)
        self._nodes[parent_of(path)].children.discard(path.rpartition("/")[2])
        if node.ephemeral_owner:
            self._ephemerals[node.ephemeral_owner].discard(path)
