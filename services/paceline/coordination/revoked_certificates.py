"""The list of revoked certificates in ZooKeeper: a znode for each serial number. Flows, see `flow`.

A process reads the list before it serves, and every few seconds after that; the list of the latest read holds while
ZooKeeper is away. Source: docs/protocol/zookeeper.md#revoked-certificates.
"""

from typing import Final

from paceline.coordination import znodes
from paceline.coordination.flow import Flow, Zk
from paceline.coordination.interface import Create, Delete, GetChildren, GetData, ZkCode
from paceline.coordination.recipes import ensure_paths, expect
from paceline.model.errors import InvalidRequestError

MAX_REVOKED: Final = 10_000
_PATH: Final = znodes.REVOKED_CERTIFICATES


def read_serial_numbers() -> Flow[frozenset[str]]:
    """Return the serial numbers of the revoked certificates."""
    (listed,) = yield Zk([GetChildren(_PATH)])
    expect(listed, _PATH, ZkCode.NO_NODE)
    return frozenset(listed.children)


def read_owners() -> Flow[dict[str, str]]:
    """Return the principals of the revoked certificates by serial number, in the order of these; empty if not known."""
    numbers = sorted((yield from read_serial_numbers()))
    responses = yield Zk([GetData(f"{_PATH}/{number}") for number in numbers])
    for number, response in zip(numbers, responses, strict=True):
        expect(response, f"{_PATH}/{number}", ZkCode.NO_NODE)
    return {
        number: (response.data or b"").decode(errors="replace")
        for number, response in zip(numbers, responses, strict=True)
        if response.ok
    }


def revoke(serial_number: str, principal: str) -> Flow[None]:
    """Add a certificate; one that is revoked already stays as it is.

    Raises:
        InvalidRequestError: the list is full.
    """
    yield from ensure_paths([_PATH])
    path = f"{_PATH}/{serial_number}"
    listed = yield from read_serial_numbers()
    if serial_number in listed:
        return
    if len(listed) >= MAX_REVOKED:
        raise InvalidRequestError(f"{len(listed)} certificates are revoked: restore those that have expired first")
    (created,) = yield Zk([Create(path, principal.encode())])
    expect(created, path, ZkCode.NODE_EXISTS)


def restore(serial_number: str) -> Flow[None]:
    """Remove a certificate.

    Raises:
        InvalidRequestError: it is not revoked.
    """
    path = f"{_PATH}/{serial_number}"
    (deleted,) = yield Zk([Delete(path)])
    expect(deleted, path, ZkCode.NO_NODE)
    if not deleted.ok and not deleted.in_doubt_before:
        raise InvalidRequestError(f"the certificate with serial number {serial_number} is not revoked")
