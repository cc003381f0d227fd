"""The broker's part of DescribeNode: its log directories, and the processes that it calls."""

from paceline.broker.fetcher.fetcher_manager import FetcherManager
from paceline.broker.membership.heartbeats import ControllerHeartbeats
from paceline.broker.metadata_cache import MetadataSnapshot
from paceline.broker.requests.log_dirs import log_dir_spaces
from paceline.log.log_manager import LogManager
from paceline.model.control import control_endpoint
from paceline.model.node_description import NodeDirectory, NodePeer


def directories_of(logs: LogManager) -> tuple[NodeDirectory, ...]:
    """Return the log directories with the space of their disks."""
    live, spaces = logs.live_log_dirs, log_dir_spaces(logs)
    found = []
    for path in logs.log_dirs:
        space = spaces.get(path)
        if space is None or path not in live:
            found.append(NodeDirectory(path, failed=path not in live))
            continue
        found.append(
            NodeDirectory(
                path, False, space.free_bytes, space.total_bytes, space.min_free_bytes, space.reserve_bytes, space.room
            )
        )
    return tuple(found)


def peers_of(
    fetchers: FetcherManager, snapshot: MetadataSnapshot, heartbeats: ControllerHeartbeats, now_ms: int
) -> tuple[NodePeer, ...]:
    """Return the leaders that are fetched from, each with its slowest fetcher, and the active controller."""
    leaders: dict[int, NodePeer] = {}
    for fetcher in fetchers.fetchers:
        contact, leader = fetcher.contact, fetcher.leader.broker_id
        peer = NodePeer("leader", leader, contact.address, contact.unanswered_ms(now_ms), error=contact.error)
        known = leaders.get(leader)
        if known is None or peer.unanswered_ms > known.unanswered_ms:
            leaders[leader] = peer
    controller = control_endpoint(snapshot.controller_endpoints)
    answered_ms = heartbeats.answered_ms
    active = NodePeer(
        "controller",
        -1 if snapshot.controller_id is None else snapshot.controller_id,
        "" if controller is None else controller.address,
        answered_ago_ms=None if answered_ms is None else now_ms - answered_ms,
        error=heartbeats.error,
    )
    return (*(leaders[leader] for leader in sorted(leaders)), active)
