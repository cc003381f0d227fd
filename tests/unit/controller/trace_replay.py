"""Replays the recorded events of a real Kafka controller to ours, and compares their writes and requests.

A trace lists every ZooKeeper write of a step. Writes of brokers and tools are repeated here; our controller must make
the writes behind the controller's fence itself. tests/golden/traces/README.md describes the format.

In the newer protocols the controller also writes for others. An ISR that a leader asked for with AlterIsr or
AlterPartition is written here as the leader writes it, with a notification; a topic's settings are changed with a call.
"""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from paceline.controller.admin.admin_values import ConfigOperation, ElectionType
from paceline.controller.election.preferred_election import FIRST_REBALANCE_MS
from paceline.coordination import znodes
from paceline.coordination.interface import Create, Delete, GetData, SetData, WatchType
from paceline.coordination.isr_history import FORMER_MEMBERS
from paceline.model.control import ControlRequest, LeaderAndIsrRequest, UpdateMetadataRequest
from paceline.model.identifiers import TopicPartition
from paceline.model.settings import ControllerConfig
from tests.unit.controller.admin_calls import alter, change, elect
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, short, tp
from tests.unit.controller.trace_protocols import (
    isr_requests,
    refused,
    remove_repetition,
    shows_earlier,
    without_recovery_state,
)

TRACES = Path(__file__).parents[2] / "golden" / "traces"
STANDBY_ID = CONTROLLER_ID + 1
STATE_PATH = re.compile(r"/brokers/topics/([^/]+)/partitions/(\d+)/state")

Json = dict[str, Any]


class Replay:
    """One scenario, played step by step; `compare` returns the differences after each step."""

    def __init__(self, name: str) -> None:
        self.trace: Json = json.loads((TRACES / f"{name}.json").read_text())
        rebalances = "auto" in name
        config = ControllerConfig(
            CONTROLLER_ID, auto_leader_rebalance_enable=rebalances, leader_imbalance_check_interval_ms=5_000
        )
        self.cluster = Cluster(config)
        self.labels: dict[int, str] = {}
        """Broker epoch (czxid) to the trace's name of that registration."""
        self.dead: set[int] = set()
        """Brokers that stopped during the step; whether they saw their last requests is a matter of timing."""
        self.remaining: list[Json] = []
        self.first_write = 0
        self.left_out: set[tuple[str, int]] = set()
        """ISRs of the step, by partition and version, that finished a move: see `_announce`."""
        self._announced_by_ours = 0
        """Setting changes made with calls whose notifications in the trace are left out."""
        self._prepare(self.trace["start"])

    # start

    def _prepare(self, start: Json) -> None:
        cluster = self.cluster
        for broker_id, label in sorted(start["brokers"].items()):
            self._register(int(broker_id), label)
        for topic, node in start["topics"].items():
            data = {"version": 3, "topic_id": f"{topic:_<22}", **node}
            cluster.zk(Create(znodes.topic_path(topic), json.dumps(data).encode()))
        for partition, text in start["partitions"].items():
            self._prepare_state(partition, text)
        if start["controller"] is not None:
            self._prepare_epoch(int(start["controller_epoch"]), start["controller_epoch_version"])
            cluster.start_controller(CONTROLLER_ID)
            cluster.start_controller(STANDBY_ID)
            self._let_brokers_forget()
        self.begin_step()

    def _prepare_state(self, partition: str, text: str) -> None:
        match = re.fullmatch(r"(-?\d+)/(\d+) isr (\[.*\]) ce (\d+) v(\d+)", text)
        assert match, text
        leader, epoch, version = int(match[1]), int(match[2]), int(match[5])
        isr: list[int] = json.loads(match[3])
        if not set(isr) & set(self.cluster.broker_sessions):
            # Our failover removes the leadership of the dead sole member again, which raises the epoch.
            epoch, version = epoch - 1, version - 1
        state = {
            "version": 1,
            "leader": leader,
            "leader_epoch": epoch,
            "isr": isr,
            "controller_epoch": int(match[4]),
        }
        topic, _, number = partition.rpartition("-")
        path = znodes.partition_state_path(TopicPartition(topic, int(number)))
        for parent in znodes.parent_paths(path)[3:]:
            self.cluster.zk(Create(parent), must_succeed=False)
        self.cluster.zk(Create(path, b"{}"))
        for _ in range(version - 1):
            self.cluster.zk(SetData(path, b"{}"))
        if version == 0:
            self.cluster.zk(Delete(path))
            self.cluster.zk(Create(path, json.dumps(state).encode()))
        else:
            self.cluster.zk(SetData(path, json.dumps(state).encode()))

    def _prepare_epoch(self, epoch: int, version: int) -> None:
        self.cluster.zk(Create(znodes.CONTROLLER_EPOCH, b"0"))
        for _ in range(version - 1):
            self.cluster.zk(SetData(znodes.CONTROLLER_EPOCH, str(epoch - 1).encode()))

    def _let_brokers_forget(self) -> None:
        self.cluster.brokers.received.clear()

    # steps

    def begin_step(self) -> None:
        self.first_write = len(self.cluster.writes)
        self.cluster.brokers.received.clear()
        self.dead.clear()
        self.left_out.clear()
        self.remaining.clear()

    def play(self, step: Json) -> None:
        """Repeat the writes of brokers and tools in a step, and let the controller finish after each write."""
        shutdowns = [
            request
            for requests in step["requests"].values()
            for request in requests
            if request["type"] == "CONTROLLED_SHUTDOWN"
        ]
        for answer in step.get("client_answers", ()):
            self._command(answer)
        self._break_directories(step)
        paused = re.match(r"broker (\d+) paused, delete", step["do"])
        if paused:
            self.cluster.brokers.silent.add(int(paused[1]))
        asked = isr_requests(step)
        for entry in step["zk"]:
            if "op" not in entry:
                continue
            if "fence" in entry:
                self._write_for_others(entry, asked)
                continue
            if entry["op"] == "session-close":
                for request in shutdowns:
                    self._shut_down(request)
                shutdowns = []
                self._close_session(entry["deletes"])
            else:
                self._write(entry)
            self.cluster.settle()
        for request in shutdowns:
            self._shut_down(request)
        if paused:
            self.cluster.brokers.release(int(paused[1]))
            self.cluster.settle()
        if "automatic rebalance" in step["do"]:
            self.cluster.time.run_for(FIRST_REBALANCE_MS)

    def _write_for_others(self, entry: Json, asked: list[dict[str, int]]) -> None:
        """Repeat a write that the controller of a newer protocol made for a leader or a client."""
        match = STATE_PATH.fullmatch(entry["path"])
        if match is not None and entry["op"] == "set":
            name = f"{match[1]}-{match[2]}"
            for partitions in asked:
                if partitions.get(name) == entry["version"]:
                    self._write(entry)
                    if name == list(partitions)[-1]:
                        self._announce(partitions)
        elif entry["op"] == "set" and entry["path"].startswith(znodes.topic_config_path("")):
            self._alter_config(entry)

    def _announce(self, partitions: dict[str, int]) -> None:
        """Leave the notification of ISR changes, as leaders do.

        Our controller watches the states of partitions that move, and finishes the move before it reads the
        notification; a controller that writes the ISR itself first sends that to brokers. So an UpdateMetadata or a
        repeated LeaderAndIsr with the ISR that finishes a move, or with the ISR before it, is left out on both sides.
        """
        received = self.cluster.brokers.received
        before = len(received)
        self.cluster.settle()
        finishing = received[before:]
        noticed = znodes.encode_partition_set([tp(one) for one in partitions])
        self.cluster.zk(Create(znodes.ISR_CHANGE_PREFIX, noticed, sequential=True))
        self.cluster.settle()
        if not finishing:
            return
        for _, request in received[before + len(finishing) :]:
            assert isinstance(request, UpdateMetadataRequest)
            assert {short(one.topic_partition) for one in request.partitions} == partitions.keys()
        received[before:] = [(broker_id, one) for broker_id, one in finishing if not shows_earlier(one, partitions)]
        self.left_out.update(partitions.items())

    def _alter_config(self, entry: Json) -> None:
        """Change a topic's settings to those of the entry."""
        wanted = entry["data"]["config"]
        path = entry["path"]
        known = self.cluster.data(path)["config"] if self.cluster.exists(path) else {}
        changes = [change(key, wanted[key]) for key in wanted if wanted[key] != known.get(key)]
        changes += [change(key, None, ConfigOperation.DELETE) for key in known if key not in wanted]
        if not changes:  # Settings from before the beginning of the trace are not in it.
            self._write(entry)
            return
        (result,) = alter(self.cluster, (path.rpartition("/")[2], tuple(changes)))
        assert result.error is None, result
        assert self.cluster.data(path) == entry["data"]
        self._announced_by_ours += 1
        self.cluster.settle()

    def _break_directories(self, step: Json) -> None:
        """Let brokers answer with the storage errors of the real brokers."""
        for broker, requests in step["requests"].items():
            for request in requests:
                if request["type"] == "LeaderAndIsr":
                    failed = {partition for partition, code in request["errors"].items() if code == 56}
                    found = self.cluster.brokers.failed_dirs[int(broker.split()[1])]
                    found.update(TopicPartition(p.rpartition("-")[0], int(p.rpartition("-")[2])) for p in failed)

    def _command(self, answer: str) -> None:
        """Repeat a command of the admin client; those that only write to ZooKeeper are among the writes already."""
        election = re.fullmatch(r"elect (preferred|unclean) (\S+): \{(.*)\}", answer)
        if election is not None:
            self._elect(election[1], election[2].split(","), dict(one.split("=") for one in election[3].split(", ")))
            return
        match = re.fullmatch(r"reassign (\w+):(\d+) ([\d,]+|-): \S+?=(\w+)", answer)
        if match is None:
            return
        topic_partition = TopicPartition(match[1], int(match[2]))
        target = None if match[3] == "-" else tuple(map(int, match[3].split(",")))
        (result,) = self.cluster.reassign({topic_partition: target})
        assert (result.error is None) == (match[4] == "OK"), (answer, result)
        self.cluster.settle()

    def _elect(self, kind: str, named: list[str], answers: dict[str, str]) -> None:
        """Request an election and compare the answer for each partition: ``OK``, or the name of a Java exception."""
        results = elect(self.cluster, ElectionType[kind.upper()], *(name.replace(":", "-") for name in named))
        given = {}
        for result in results:
            said = answers[short(result.topic_partition)].removesuffix("Exception")
            words = [] if said == "OK" else re.findall("[A-Z][a-z]+", said)
            expected = "_".join(words).upper() or None
            given[short(result.topic_partition)] = result.error.code.name if result.error else None
            assert given[short(result.topic_partition)] == expected, (kind, result)
        assert given.keys() == answers.keys()
        self.cluster.settle()

    def _shut_down(self, request: Json) -> None:
        response = self.cluster.controlled_shutdown(request["broker"])
        assert int(response.error) == request["error"]
        assert [short(tp) for tp in response.remaining] == request["remaining"]
        self.cluster.settle()

    def _close_session(self, paths: list[str]) -> None:
        cluster = self.cluster
        sessions = []
        if znodes.CONTROLLER in paths:
            (active,) = [number for number, node in cluster.controllers.items() if node.is_active]
            client = cluster.controller_clients.pop(active)
            sessions.append(client.session_id)
            client.crash()
            cluster.controllers.pop(active).stop()
        for path in paths:
            if path.startswith(znodes.BROKER_IDS):
                broker_id = int(path.rpartition("/")[2])
                client = cluster.broker_sessions.pop(broker_id)
                sessions.append(client.session_id)
                client.crash()
                self.dead.add(broker_id)
        for session_id in sessions:
            cluster.server.expire(session_id)

    def _register(self, broker_id: int, label: str) -> None:
        self.cluster.start_broker(broker_id)
        stat = self.cluster.zk(GetData(znodes.broker_path(broker_id))).stat
        assert stat is not None
        self.labels[stat.czxid] = label

    def _write(self, entry: Json) -> None:
        cluster, path, op = self.cluster, entry["path"], entry["op"]
        if path.startswith(znodes.CONFIG_CHANGE_PREFIX) and self._announced_by_ours:
            self._announced_by_ours -= 1
            return
        if path == znodes.CONTROLLER and op == "create":
            if not cluster.controllers:
                cluster.start_controller()
        elif path == znodes.CONTROLLER and op == "delete":
            # Kafka repeats this until another controller wins; here the owner's session ends with it.
            self._close_session([znodes.CONTROLLER])
        elif path.startswith(f"{znodes.BROKER_IDS}/"):
            self._write_registration(entry)
        elif path.startswith((znodes.ISR_CHANGE_PREFIX, znodes.LOG_DIR_EVENT_PREFIX, znodes.CONFIG_CHANGE_PREFIX)):
            cluster.zk(Create(path.rstrip("0123456789"), json.dumps(entry["data"]).encode(), sequential=True))
        elif path in (znodes.CONTROLLER_EPOCH, "/feature", znodes.LATEST_PRODUCER_ID_BLOCK, znodes.CLUSTER_ID):
            return
        elif op == "create":
            data = None if entry["data"] is None else json.dumps(self._with_topic_id(path, entry["data"])).encode()
            cluster.zk(Create(path, data), must_succeed=data is not None)
        elif op == "set" and not cluster.exists(path):
            cluster.zk(Create(path, json.dumps(entry["data"]).encode()))
        elif op == "set":
            expected = entry["version"] - 1 if STATE_PATH.fullmatch(path) else -1
            data = without_recovery_state(self._with_topic_id(path, entry["data"]))
            cluster.zk(SetData(path, json.dumps(data).encode(), expected))
        else:
            cluster.zk(Delete(path))

    def _write_registration(self, entry: Json) -> None:
        broker_id = int(entry["path"].rpartition("/")[2])
        if "broker_epoch" in entry:
            self._register(broker_id, entry["broker_epoch"])
        elif "multi" not in entry:
            path = znodes.broker_path(broker_id)
            self.cluster.zk(SetData(path, json.dumps({**entry["data"], "timestamp": "0"}).encode()))

    def _with_topic_id(self, path: str, data: Any) -> Any:
        """A client that rewrites a topic's node keeps the id, which the traces of that release lack."""
        folder, _, topic = path.rpartition("/")
        if folder != znodes.TOPICS:
            return data
        if not self.cluster.exists(path):
            return {**data, "topic_id": f"{topic:_<22}"} if "topic_id" in data else data
        known = self.cluster.data(path).get("topic_id")
        return {**data, "topic_id": known} if known else data

    # comparison

    def states(self) -> dict[str, list[Json]]:
        """Every state each partition went through in this step, with its version."""
        found = defaultdict(list)
        for write in self.cluster.writes[self.first_write :]:
            match = STATE_PATH.fullmatch(write.change.path)
            if match and write.change.type is not WatchType.DELETED:
                state = json.loads(write.change.new_data or b"{}")
                state.pop(FORMER_MEMBERS, None)  # ours; Kafka's state nodes have nothing like it
                found[f"{match[1]}-{match[2]}"].append({**state, "version": write.change.new_version})
        return dict(found)

    def expected_states(self, step: Json) -> dict[str, list[Json]]:
        found = defaultdict(list)
        for entry in step["zk"]:
            match = STATE_PATH.fullmatch(entry.get("path", ""))
            if match and entry["op"] != "delete":
                data = without_recovery_state(entry["data"])
                found[f"{match[1]}-{match[2]}"].append({**data, "version": entry.get("version", 0)})
        return dict(found)

    def requests(self) -> dict[str, list[Json]]:
        """Return the requests that each broker received, in the format of the traces."""
        found: dict[str, list[Json]] = defaultdict(list)
        for broker_id, request in self.cluster.brokers.received:
            found[f"broker {broker_id}"].append(self._described(request))
        return dict(found)

    def expected_requests(self, step: Json) -> dict[str, list[Json]]:
        found = {}
        for broker, requests in step["requests"].items():
            rows = [
                {key: value for key, value in request.items() if key in {
                    "type", "controller_epoch", "broker_epoch", "live", "partitions"}}
                for request in requests
                if request["type"] in ("LeaderAndIsr", "UpdateMetadata", "StopReplica")
            ]  # fmt: skip
            for row in rows:
                for state in row["partitions"].values():
                    state.pop("recovery", None)  # as in the state node
                if isinstance(row.get("live"), list):
                    row["live"] = [broker if isinstance(broker, int) else broker["id"] for broker in row["live"]]
                elif isinstance(row.get("live"), dict):
                    row["live"] = sorted(int(broker_id) for broker_id in row["live"])
            rows = [row for row in rows if not self._is_left_out(row)]
            for name in refused(step):
                remove_repetition(rows, name)
            if rows:
                found[broker] = rows
        return found

    def _is_left_out(self, row: Json) -> bool:
        named = {(name, state.get("zkv")) for name, state in row["partitions"].items()}
        return row["type"] != "StopReplica" and bool(named) and named <= self.left_out

    def _described(self, request: ControlRequest) -> Json:
        row: Json = {
            "controller_epoch": request.stamp.controller_epoch,
            "broker_epoch": self.labels[request.stamp.broker_epoch or -1],
        }
        if isinstance(request, LeaderAndIsrRequest):
            row["type"] = "LeaderAndIsr"
            row["live"] = [broker.broker_id for broker in request.live_leaders]
            row["partitions"] = {}
            for told in request.partitions:
                described = row["partitions"][short(told.topic_partition)] = {
                    "leader": told.leader,
                    "leader_epoch": told.leader_epoch,
                    "isr": list(told.isr),
                    "ce": told.controller_epoch,
                    "zkv": told.zk_version,
                    "ar": list(told.replicas),
                    "new": told.is_new,
                }
                if told.adding_replicas:
                    described["adding"] = list(told.adding_replicas)
                if told.removing_replicas:
                    described["removing"] = list(told.removing_replicas)
        elif isinstance(request, UpdateMetadataRequest):
            row["type"] = "UpdateMetadata"
            row["live"] = [broker.broker_id for broker in request.live_brokers]
            row["partitions"] = {}
            for known in request.partitions:
                row["partitions"][short(known.topic_partition)] = {
                    "leader": known.leader,
                    "leader_epoch": known.leader_epoch,
                    "isr": list(known.isr),
                    "ce": known.controller_epoch,
                    "zkv": known.zk_version,
                    "ar": list(known.replicas),
                    **({"offline": list(known.offline_replicas)} if known.offline_replicas else {}),
                }
        else:
            row["type"] = "StopReplica"
            row["partitions"] = {
                short(stop.topic_partition): {"leader_epoch": stop.leader_epoch, "delete": stop.delete_partition}
                for stop in request.partitions
            }
        return row

    def partitions(self) -> dict[str, str]:
        """Return the state of every partition, in the format of the traces."""
        found = {}
        for topic in sorted(self.cluster.children(znodes.TOPICS)):
            path = znodes.topic_partitions_path(topic)
            for partition in self.cluster.children(path) if self.cluster.exists(path) else ():
                name = f"{topic}-{partition}"
                if self.cluster.exists(znodes.partition_state_path(TopicPartition(topic, int(partition)))):
                    found[name] = self.cluster.state(name)
        return found
