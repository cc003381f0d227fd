"""Plays scenarios: sends commands to a driver, breaks the cluster as the steps say, and judges the answers and the log.

A step is an object with one of these keys:

* `{"topic": "$topic", "partitions": 3}` creates a topic. "$topic" is a fresh name in every scenario.
* `{"send": COMMAND, "expect": PART}` sends a command. The answer has to contain PART (see `difference`), or be "ok"
  without PART. "$bootstrap" stands for the addresses of the brokers, "$standby" for the address of the standby
  controller. The steps of `"during": [STEP, ...]` are played by another thread while the driver works on the command.
  With `"again": CODE`, an error with `definite` false is followed by the same command once more, whose error CODE then
  also counts as success: the connection may have closed while the first request was on its way.
  The records of a produce command may be `{"count": 1000, "partition": 0}`: values "0" to "999". With `"driver": NAME`
  the command goes to another process of the same driver, or with "python" to one of the Python driver; commands that
  name a member go where it was opened.
* `{"do": ACTION, ...}` changes the cluster, see clusters.py; with `"at_end": N` only when the log of partition 0 of the
  topic has N records.
* `{"check_log": {"topic": T, "values": [...]}}`: the log of partition 0 has exactly these values, base64 or null.
* `{"check_exactly_once": {"topic": T, "partitions": N}}`: every record of the last produce command was acknowledged and
  is at its offset, in the order of sending per partition, and no value is in the log twice.
* `{"check_calls": {"method": M, "at_least": N, "at_most": N}}`: calls of a method at the scripted brokers so far.
* `{"wait": COMMAND, "until": PART}` sends a command again and again until its answer contains PART.
* `{"kill_driver": NAME}` kills another process, and its members with it.
* `{"wait_assigned": ...}`, `{"wait_read": ...}`, `{"remember": MEMBER}`, `{"check_unchanged": ...}`: members of
  consumer groups, see members.py.
"""

import threading
from collections import Counter
from typing import Any

from tests.conformance.answers import ScenarioError, difference, packed
from tests.conformance.clusters import Cluster, ScriptedCluster, fresh_topic, wait_until
from tests.conformance.driver import Driver, Message
from tests.conformance.members import Members
from tests.conformance.processes import COMMAND_TIMEOUT_S, Processes
from tests.conformance.scenarios import Scenario, Step


class Player:
    """Plays one scenario."""

    def __init__(self, driver: Driver, cluster: Cluster | None) -> None:
        self._processes = Processes(driver)
        self._members = Members(self._processes)
        self._cluster = cluster
        self._topic = fresh_topic()
        self._produced: tuple[Message, list[Message]] = ({}, [])

    def play(self, scenario: Scenario) -> None:
        """Play every step.

        Raises:
            UnsupportedError: the driver says that its client lacks something.
            ScenarioError: an answer, or the log, is not what it should be.
            DriverError: the driver broke the protocol.
        """
        try:
            for step in scenario.steps:
                self._step(self._filled(step))
        finally:
            self._processes.kill_all()
            if scenario.cluster != "none":
                self._processes.ask({"command": "close"})

    def _filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._filled(key): self._filled(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self._filled(one) for one in value]
        if value == "$bootstrap":
            return self._cluster.bootstrap if self._cluster is not None else []
        if value == "$standby":
            assert isinstance(self._cluster, ScriptedCluster)
            return [self._cluster.fake.standby.address]
        return value.replace("$topic", self._topic) if isinstance(value, str) else value

    def _step(self, step: Step) -> None:
        if "send" in step:
            self._send(step)
        elif "do" in step:
            at_end = step.get("at_end", 0)
            if at_end:
                wait_until(lambda: self._the_cluster.end(self._topic, 0) >= at_end, f"{at_end} records are in the log")
            arguments = {key: value for key, value in step.items() if key not in ("do", "at_end")}
            self._the_cluster.act(step["do"], arguments)
        elif "topic" in step:
            self._the_cluster.topic(step["topic"], step.get("partitions", 1))
        elif "check_log" in step:
            found = [packed(value) for value in self._the_cluster.values(step["check_log"]["topic"], 0)]
            if found != step["check_log"]["values"]:
                raise ScenarioError(f"the log has the values {found}")
        elif "check_exactly_once" in step:
            self._check_exactly_once(step["check_exactly_once"])
        elif "check_calls" in step:
            self._check_calls(step["check_calls"])
        elif "kill_driver" in step:
            self._processes.kill(step["kill_driver"])
        elif self._members.step(step):
            pass
        else:
            raise ValueError(f"unknown step {step}")

    @property
    def _the_cluster(self) -> Cluster:
        assert self._cluster is not None, "the scenario needs a cluster"
        return self._cluster

    def _send(self, step: Step) -> None:
        command = dict(step["send"])
        if isinstance(command.get("records"), dict):
            spec = command["records"]
            fields = {key: value for key, value in spec.items() if key != "count"}
            command["records"] = [{**fields, "value": packed(b"%d" % number)} for number in range(spec["count"])]
        failures: list[BaseException] = []
        background = threading.Thread(target=self._play_during, args=(step.get("during", []), failures))
        background.start()
        try:
            answer = self._processes.ask(command, step.get("driver", ""))
        finally:
            background.join(COMMAND_TIMEOUT_S)
        if failures:
            raise failures[0]
        if "again" in step and answer.get("error", {}).get("definite") is False:
            answer = self._processes.ask(command, step.get("driver", ""))
            if answer.get("error", {}).get("code") == step["again"]:
                return
        if command["command"] == "produce" and "ok" in answer:
            self._produced = command, answer["ok"]["results"]
        wanted = step.get("expect", {"ok": {}})
        problem = difference(wanted, answer)
        if problem:
            raise ScenarioError(f"{command['command']}: {problem}")

    def _play_during(self, steps: list[Step], failures: list[BaseException]) -> None:
        try:
            for step in steps:
                self._step(step)
        except BaseException as failure:
            failures.append(failure)

    def _check_exactly_once(self, wanted: Message) -> None:
        command, results = self._produced
        topic = wanted["topic"]
        logs = {
            partition: [packed(value) for value in self._the_cluster.values(topic, partition)]
            for partition in range(wanted.get("partitions", 1))
        }
        everything = [value for log in logs.values() for value in log]
        doubled = [value for value, count in Counter(everything).items() if count > 1][:10]
        if doubled:
            raise ScenarioError(f"values that are in the log twice: {doubled}")
        if len(results) != len(command["records"]):
            raise ScenarioError(f"{len(results)} outcomes for {len(command['records'])} records")
        before: dict[int, int] = {}
        for record, result in zip(command["records"], results, strict=True):
            if "error" in result:
                if result["error"]["definite"] and record["value"] in everything:
                    raise ScenarioError(f"{record['value']} is in the log, and the client said that it surely is not")
                if wanted.get("all_acknowledged", True):
                    raise ScenarioError(f"a record was not delivered: {result['error']}")
                continue
            partition, offset = result["partition"], int(result["offset"])
            if offset >= len(logs[partition]) or logs[partition][offset] != record["value"]:
                raise ScenarioError(f"{record['value']} was acknowledged at {partition}/{offset} and is not there")
            if offset <= before.get(partition, -1):
                raise ScenarioError(f"{record['value']} overtook a record that was sent before it")
            before[partition] = offset

    def _check_calls(self, wanted: Message) -> None:
        assert isinstance(self._cluster, ScriptedCluster)
        count = self._cluster.fake.calls[wanted["method"]]
        if not wanted.get("at_least", 0) <= count <= wanted.get("at_most", count):
            raise ScenarioError(f"{wanted['method']} was called {count} times, expected {wanted}")
