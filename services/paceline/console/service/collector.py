"""Follow a live cluster through its public RPCs: events of every process, and samples of chosen partitions.

A client like any other: it asks for `DescribeReplicas` and `WatchEvents`, with the console's own certificate. Entries
are ordered by their receipt; an event keeps the time of its source, whose clock may differ.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import grpc

from paceline.console.recording import EVENT, GAP, SAMPLE, SAMPLE_MS, Entry
from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChangeKind, state_change_fields
from paceline_client import Admin

MOST_SAMPLED: Final = 100
"""Partitions that are sampled twice a second, at most; also the limit of partitions that one watch names."""
_MANY: Final = 200
"""Partitions from which on the metadata of all partitions is read every ten seconds instead of every two."""
_ANSWER_MS: Final = 400
"""Longest wait for the replicas of one broker: a paused broker must not delay the samples of the others."""
_PATIENCE_MS: Final = 1_500
"""Time after which a watch gives up; below two seconds, after which a client reports on stderr that it waits."""
_AGAIN_S: Final = 0.5
_JOIN_S: Final = 3.0
_BROKEN: Final = (PacelineError, grpc.RpcError, ValueError)
"""Errors of a call; ValueError comes from a channel that was closed meanwhile."""


class Collector:
    """Passes on events and samples of a cluster, until closed."""

    def __init__(
        self,
        open_admin: Callable[[], Admin],
        sink: Callable[[Entry], None],
        sampled: Callable[[], Collection[TopicPartition]],
        began_ms: int,
    ) -> None:
        """Threads call the arguments.

        Args:
            open_admin: returns a new client.
            sink: receives the entries, from one thread at a time.
            sampled: returns the partitions to sample now, the most important first.
            began_ms: Unix time of ``t`` 0 in milliseconds.
        """
        self._open_admin = open_admin
        self._sink = sink
        self._sampled = sampled
        self._began_ms = began_ms
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._admins: dict[str, Admin] = {}
        self._named: frozenset[TopicPartition] = frozenset()
        self._known: dict[TopicPartition, Any] = {}
        self._lost_t: int | None = None
        self.trouble = ""
        """Why the last sample failed; empty when it did not."""
        self.metadata: tuple[Any, list[Any], int] | None = None
        """Cluster, topics, and their Unix time in ms; None before the first answer."""

    @property
    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of the cluster, as far as they are known."""
        return sorted(self._known)

    def start(self) -> None:
        """Start the threads."""
        self._run("samples", self._sample_forever)
        self._run("controller", partial(self._watch_forever, "controller", None, False))

    def close(self) -> None:
        """Stop all threads; no entry is passed on afterwards."""
        with self._lock:
            self._over.set()
        for admin in list(self._admins.values()):
            admin.close()
        for thread in list(self._threads.values()):
            thread.join(_JOIN_S)

    def _run(self, name: str, work: Callable[[], None]) -> None:
        if name not in self._threads:
            self._threads[name] = threading.Thread(target=work, name=f"console-{name}", daemon=True)
            self._threads[name].start()

    def _t(self) -> int:
        return int(time.time() * 1000) - self._began_ms

    def _pass_on(self, kind: str, value: dict[str, Any]) -> None:
        with self._lock:
            if not self._over.is_set():
                self._sink(Entry(self._t(), kind, value))

    # Events

    def _watch_forever(self, name: str, broker_id: int | None, requests_only: bool) -> None:
        """Pass on the events of a process, or only the controller's requests to it for the sampled partitions."""
        since_ms: int | None = None
        while not self._over.is_set():
            wanted = self._named if requests_only else frozenset()
            if wanted or not requests_only:
                kinds = (StateChangeKind.CONTROL_REQUEST,) if requests_only else ()
                with suppress(*_BROKEN), self._open_admin() as admin:
                    self._admins[name] = admin
                    items = admin.watch_events(
                        since_ms=since_ms,
                        partitions=sorted(wanted),
                        kinds=kinds,
                        broker_id=broker_id,
                        patience_ms=_PATIENCE_MS,
                    )
                    # A process that restarts has events before the next watch reaches it, such as a truncation.
                    since_ms = since_ms or int(time.time() * 1000)
                    for batch in items:
                        for change in batch.events:
                            since_ms = max(since_ms, change.wall_ms + 1)
                            # Once named, a partition's requests come on both streams of a broker.
                            if (change.kind is StateChangeKind.CONTROL_REQUEST) is requests_only:
                                self._pass_on(EVENT, self._event(state_change_fields(change)))
                        if batch.gap is not None and not batch.gap.other_process:
                            why = f"{batch.gap.lost_count} events of {batch.address} were dropped"
                            self._pass_on(GAP, {"from": self._t(), "why": why})
                        if requests_only and wanted != self._named:
                            break
            self._over.wait(_AGAIN_S)

    def _event(self, fields: dict[str, Any]) -> dict[str, Any]:
        ahead_ms = fields.get("wall_ms", 0) - int(time.time() * 1000)
        return {**fields, "clock_ahead_ms": ahead_ms} if abs(ahead_ms) > 1_000 else fields

    def _name(self, named: frozenset[TopicPartition]) -> None:
        """Let the brokers report control requests for these partitions."""
        if named == self._named:
            return
        self._named = named
        for name, admin in list(self._admins.items()):
            if name.startswith("requests"):
                admin.close()  # ends the watch, which begins again with the new names

    # Samples

    def _sample_forever(self) -> None:
        rounds = 0
        while not self._over.is_set():
            try:
                with self._open_admin() as admin:
                    self._admins["samples"] = admin
                    while not self._over.is_set():
                        began = time.monotonic()
                        self._round(admin, rounds % (4 if len(self._known) < _MANY else 20) == 0)
                        rounds += 1
                        self._over.wait(max(SAMPLE_MS / 1000 - (time.monotonic() - began), 0.05))
            except Exception as error:  # whatever it is, the page shows it, and the next round may succeed
                if self._lost_t is None:
                    self._lost_t = self._t()
                self.trouble = f"The picture is old: {error or type(error).__name__}"
                self._over.wait(_AGAIN_S)

    def _round(self, admin: Admin, with_overview: bool) -> None:
        sampled = frozenset(list(self._sampled())[:MOST_SAMPLED])
        self._name(sampled)
        cluster = admin.describe_cluster(2_000)
        for broker in cluster.brokers:
            self._watch_broker(broker.broker_id)
        names = {topic for topic, _ in sampled} & {topic for topic, _ in self._known}
        topics = (
            admin.describe_topics(None if with_overview else sorted(names), 2_000) if with_overview or names else []
        )
        if self._lost_t is not None:
            self._pass_on(GAP, {"from": self._lost_t, "why": self.trouble})
            self._lost_t, self.trouble = None, ""
        chosen = [
            replace(topic, partitions=tuple(one for one in topic.partitions if (topic.name, one.partition) in sampled))
            for topic in topics
        ]
        views = admin.describe_hosts([one for one in chosen if one.partitions], _ANSWER_MS) if sampled else {}
        if with_overview:
            self.metadata = cluster, topics, int(time.time() * 1000)
            there = {TopicPartition(topic.name, one.partition) for topic in topics for one in topic.partitions}
            self._known = {key: value for key, value in self._known.items() if key in there}
        alive = {one.broker_id for one in cluster.brokers}
        about = {"controller": cluster.controller_id, "controller_epoch": cluster.controller_epoch}
        for topic in topics:
            for partition in topic.partitions:
                key = TopicPartition(topic.name, partition.partition)
                state = (partition.leader, partition.leader_epoch, partition.isr)
                if key in sampled:
                    self._known[key] = state
                    self._pass_on(SAMPLE, {**about, **sample_of(key, partition, views, alive)})
                elif self._known.get(key) != state:
                    self._known[key] = state
                    self._pass_on(SAMPLE, {**about, **sample_of(key, partition, None, alive)})

    def _watch_broker(self, broker_id: int) -> None:
        for name, requests_only in ((f"broker-{broker_id}", False), (f"requests-{broker_id}", True)):
            self._run(name, partial(self._watch_forever, name, broker_id, requests_only))


def sample_of(
    key: TopicPartition,
    partition: Any,
    views: Mapping[int, Mapping[TopicPartition, Any]] | None,
    alive: Collection[int],
) -> dict[str, Any]:
    """Return a sample of a partition from its metadata and from the views of its brokers.

    ``views`` is None when the brokers were not asked; otherwise a broker without a view has not answered.
    """
    given = {broker: found[key] for broker, found in (views or {}).items() if key in found}
    leading = max((one for one in given.values() if one.error is None), key=lambda one: one.leader_epoch, default=None)
    state = leading or partition
    found: dict[str, Any] = {
        "topic": key.topic,
        "partition": key.partition,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
        "replicas": [],
    }
    if leading is not None:
        found |= {"maximal_isr": list(leading.maximal_isr), "min_insync_replicas": leading.min_insync_replicas}
        found |= {"topic_id": leading.topic_id, "zk_version": leading.zk_version}
    progress = {one.broker_id: one for one in leading.replicas} if leading is not None else {}
    for broker in partition.replicas:
        view = given.get(broker)
        own = next((one for one in view.replicas if one.broker_id == broker), None) if view is not None else None
        replica: dict[str, Any] = {"broker_id": broker, "alive": broker in alive, "registered": broker in alive}
        if views is not None and broker in alive:
            replica["answers"] = view is not None
        if view is not None and own is not None:
            replica["role"] = "leader" if view.leader == broker else "follower"
            replica["applied"] = {"leader": view.leader, "leader_epoch": view.leader_epoch}
            replica["log_start_offset"] = own.log_start_offset
            replica["log_end_offset"] = own.log_end_offset
            replica["high_watermark"] = own.high_watermark
            replica["leader_epochs"] = [list(one) for one in own.leader_epochs]
        if broker in progress and view is not leading:
            replica["last_fetch_ago_ms"] = progress[broker].last_fetch_ago_ms
            replica["last_caught_up_ago_ms"] = progress[broker].last_caught_up_ago_ms
        found["replicas"].append({name: value for name, value in replica.items() if value is not None})
    return found
