"""Read, check and write the cluster id in the ``meta.properties`` file of each log directory."""

from datetime import UTC, datetime

from paceline.log.log_manager import LogManager
from paceline.model.errors import InvalidConfigError


def known_cluster_id(logs: LogManager) -> str | None:
    """Return the cluster id of the log directories, None when no directory has a cluster id."""
    known = logs.read_meta_properties()
    return next((meta.cluster_id for _, meta in sorted(known.items()) if meta is not None and meta.cluster_id), None)


def check_cluster_id(logs: LogManager, cluster_id: str) -> None:
    """Refuse log directories of another cluster.

    Raises:
        InvalidConfigError: a directory belongs to another cluster.
    """
    for log_dir, meta in sorted(logs.read_meta_properties().items()):
        if meta is not None and meta.cluster_id not in (None, cluster_id):
            raise InvalidConfigError(f"{log_dir} belongs to cluster {meta.cluster_id}, not {cluster_id}")


def write_cluster_id(logs: LogManager, broker_id: int, cluster_id: str, wall_ms: int) -> None:
    """Write broker id and cluster id into the directories, unless all of them have both."""
    if all(meta is not None and meta.cluster_id for meta in logs.read_meta_properties().values()):
        return
    now = datetime.fromtimestamp(wall_ms / 1000, UTC)
    logs.write_meta_properties(broker_id, cluster_id, now.strftime("%a %b %d %H:%M:%S UTC %Y"))
