"""CPU time of all processes of a measurement, which is meaningful on a machine with other work, too."""

import os
from collections.abc import Iterable

import psutil

from paceline.dev.local_cluster import LocalCluster


class CpuMeter:
    """Seconds of CPU, user and system, that some processes have used since this meter was created."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self._begin = self._used()

    def seconds(self) -> float:
        """Return the sum over the processes."""
        return self._used() - self._begin

    def _used(self) -> float:
        times = [process.cpu_times() for process in self._processes]
        return float(sum(one.user + one.system for one in times))


def meter_of(cluster: LocalCluster) -> CpuMeter:
    """Return a meter of all processes of the cluster and of this process, which drives it."""
    pids = [node.process.pid for node in cluster.nodes.values() if node.process is not None]
    if cluster.zookeeper is not None and cluster.zookeeper.pid is not None:
        pids.append(cluster.zookeeper.pid)
    return CpuMeter([*pids, os.getpid()])
