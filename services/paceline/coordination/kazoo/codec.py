"""`RequestCodec`: convert requests and responses between `coordination.interface` and kazoo."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.exceptions import (
    EXCEPTIONS,
    BadArgumentsError,
    BadVersionError,
    ConnectionLoss,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.protocol import serialization
from kazoo.protocol.states import EventType, ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from paceline.coordination.credentials import SECRET_ROOTS, ZooKeeperSecurity
from paceline.coordination.interface import (
    Check,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    GetMany,
    Multi,
    Operation,
    Request,
    Response,
    SetData,
    Stat,
    WatchType,
    ZkCode,
)
from paceline.coordination.kazoo.multi_read import MultiRead

LOG = logging.getLogger(__name__)

_CODES: tuple[tuple[type[Exception], ZkCode], ...] = (
    (NoNodeError, ZkCode.NO_NODE),
    (NodeExistsError, ZkCode.NODE_EXISTS),
    (BadVersionError, ZkCode.BAD_VERSION),
    (NotEmptyError, ZkCode.NOT_EMPTY),
    (NoChildrenForEphemeralsError, ZkCode.NO_CHILDREN_FOR_EPHEMERALS),
    (BadArgumentsError, ZkCode.BAD_ARGUMENTS),
    (RolledBackError, ZkCode.ROLLED_BACK),
    (RuntimeInconsistency, ZkCode.ROLLED_BACK),
    (ConnectionLoss, ZkCode.CONNECTION_LOSS),
    (SessionExpiredError, ZkCode.SESSION_EXPIRED),
    (UnimplementedError, ZkCode.UNIMPLEMENTED),
)
_WATCH_TYPES = {
    EventType.CREATED: WatchType.CREATED,
    EventType.DELETED: WatchType.DELETED,
    EventType.CHANGED: WatchType.DATA_CHANGED,
    EventType.CHILD: WatchType.CHILDREN_CHANGED,
}
_EPHEMERAL, _SEQUENTIAL = 1, 2


class AbsoluteCreate(Create):
    """A request to create a node of the chroot's own path; the chroot is not prepended."""


class RequestCodec:
    """Encodes requests below a chroot, with the ACLs of new nodes, and decodes responses."""

    def __init__(self, chroot: str, security: ZooKeeperSecurity) -> None:
        self._chroot = chroot
        self._acl, self._secret_acl = _access_lists(security)

    def _path(self, path: str) -> str:
        if path == "/":
            return self._chroot or "/"
        return self._chroot + path

    def without_chroot(self, path: str) -> str:
        """Return a path of the ensemble relative to the chroot, as the owner uses it."""
        return path[len(self._chroot) :] or "/"

    def encode(self, request: Request | Operation, on_watch: Callable[[Any], None]) -> Any:
        """Return kazoo's form of a request; if the request sets a watch, ``on_watch`` receives its event."""
        path = "" if isinstance(request, Multi | GetMany) else self._path(request.path)
        watcher = on_watch if getattr(request, "watch", False) else None
        match request:
            case AbsoluteCreate():
                return serialization.Create(request.path, request.data, self._acl, 0)
            case GetData():
                return serialization.GetData(path, watcher)
            case GetMany():
                return MultiRead(tuple(map(self._path, request.paths)))
            case Exists():
                return serialization.Exists(path, watcher)
            case GetChildren():
                return serialization.GetChildren2(path, watcher)
            case Create():
                flags = (_EPHEMERAL if request.ephemeral else 0) | (_SEQUENTIAL if request.sequential else 0)
                if request.sequential:
                    # The path of a sequential node may end in a slash: the number is then the whole name.
                    path = self._chroot + request.path
                return serialization.Create(path, request.data, self._acl_of(request.path), flags)
            case SetData():
                return serialization.SetData(path, request.data, request.version)
            case Delete():
                return serialization.Delete(path, request.version)
            case Check():
                return serialization.CheckVersion(path, request.version)
            case Multi():
                return serialization.Transaction([self.encode(operation, on_watch) for operation in request.operations])

    def decode(self, request: Request, value: Any) -> Response:
        """Convert kazoo's result of a request to a response."""
        match request:
            case GetData():
                return Response(ZkCode.OK, data=value[0], stat=_stat(value[1]))
            case GetMany():
                results = [
                    Response(code_of(EXCEPTIONS[error]()) if error else ZkCode.OK, data) for error, data in value
                ]
                return Response(ZkCode.OK, results=tuple(results))
            case Exists():
                return Response(ZkCode.NO_NODE) if value is None else Response(ZkCode.OK, stat=_stat(value))
            case GetChildren():
                return Response(ZkCode.OK, children=tuple(sorted(value[0])), stat=_stat(value[1]))
            case Multi():
                return self._decode_multi(value)
        return self._decode_operation(value)

    def _decode_multi(self, values: Sequence[Any]) -> Response:
        """Convert the results of a multi; kazoo does not raise for a failed multi, so check each result."""
        results = tuple(self._decode_operation(value) for value in values)
        failed = [result.code for result in results if not result.ok]
        if not failed:
            return Response(ZkCode.OK, results=results)
        code = next((code for code in failed if code is not ZkCode.ROLLED_BACK), ZkCode.ROLLED_BACK)
        return Response(code, results=results)

    def _decode_operation(self, value: Any) -> Response:
        if isinstance(value, Exception):
            return Response(code_of(value))
        if isinstance(value, ZnodeStat):
            return Response(ZkCode.OK, stat=_stat(value))
        if isinstance(value, str):
            return Response(ZkCode.OK, path=self.without_chroot(value))
        return Response(ZkCode.OK)

    def _acl_of(self, path: str) -> Any:
        secret = any(path == root or path.startswith(f"{root}/") for root in SECRET_ROOTS)
        return self._secret_acl if secret else self._acl


def watch_type_of(event: Any) -> WatchType | None:
    """Return the type of a watch event, None for an event that is not about a node."""
    return _WATCH_TYPES.get(event.type)


def code_of(exception: Exception) -> ZkCode:
    """Return the code of a kazoo exception, `ZkCode.OTHER` for an unknown exception."""
    for exception_type, code in _CODES:
        if isinstance(exception, exception_type):
            return code
    LOG.warning("unexpected ZooKeeper error: error=%r", exception)
    return ZkCode.OTHER


def _access_lists(security: ZooKeeperSecurity) -> tuple[Any, Any]:
    """Return (ACL of ordinary nodes, ACL of nodes with secrets)."""
    if not security.set_acl:
        return OPEN_ACL_UNSAFE, OPEN_ACL_UNSAFE
    ours = make_acl("sasl", security.username, all=True)
    return [ours, make_acl("world", "anyone", read=True)], [ours]


def _stat(stat: Any) -> Stat:
    return Stat(
        czxid=stat.czxid,
        version=stat.version,
        mzxid=stat.mzxid,
        cversion=stat.cversion,
        ephemeral_owner=stat.ephemeralOwner,
        num_children=stat.numChildren,
    )
