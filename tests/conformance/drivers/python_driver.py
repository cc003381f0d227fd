"""Driver of the Python client for the conformance scenarios; the protocol is described in ../README.md."""

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline import __version__
from paceline.model.errors import ErrorCode, InvalidRequestError, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.tls import TlsFiles
from paceline_client import Admin, Consumer, DeliveryFailedError, LogTruncatedError, NewTopic, Producer
from paceline_client.errors import ProducerFatalError
from paceline_client.partitioner import partition_for_key
from tests.conformance.drivers.python_member import PythonMember

Message = dict[str, Any]


class Driver:
    """The clients of one cluster."""

    def __init__(self) -> None:
        self._bootstrap: list[str] = []
        self._tls: TlsFiles | None = None
        self._producer: Producer | None = None
        self._admin: Admin | None = None
        self._consumers: dict[str, tuple[Consumer, TopicPartition]] = {}
        self._failed_consumers: dict[str, PacelineError] = {}
        """Errors of `consume_open` that the first `consume_poll` returns."""
        self._members: dict[str, PythonMember] = {}
        self._commands: dict[str, Callable[[Message], Message]] = {
            "hello": self.hello,
            "partition_for_key": self.partition_for_key,
            "open": self.open,
            "produce": self.produce,
            "consume_open": self.consume_open,
            "consume_poll": self.consume_poll,
            "consume_close": self.consume_close,
            "list_offset": self.list_offset,
            "create_topic": self.create_topic,
            "delete_topic": self.delete_topic,
            "describe_topic": self.describe_topic,
            "group_open": self.group_open,
            "group_state": lambda command: self._members[command["member"]].state(),
            "group_commit": lambda command: self._members[command["member"]].commit(command.get("offsets")),
            "group_committed": lambda command: self._members[command["member"]].committed(command["partitions"]),
            "group_pause": lambda command: self._members[command["member"]].pause(),
            "group_resume": lambda command: self._members[command["member"]].resume(),
            "group_close": lambda command: self._members.pop(command["member"]).close(),
            "close": self.close,
        }

    def answer(self, command: Message) -> Message:
        """Execute a command and return the answer."""
        handler = self._commands.get(command["command"])
        if handler is None:
            return {"id": command["id"], "unsupported": f"there is no command {command['command']}"}
        try:
            return {"id": command["id"], "ok": handler(command)}
        except PacelineError as error:
            return {"id": command["id"], "error": error_fields(error)}

    def hello(self, command: Message) -> Message:
        """Return the description of this driver."""
        return {"language": "python", "client": "paceline_client", "version": __version__}

    def partition_for_key(self, command: Message) -> Message:
        """Return the partition of a key."""
        key = unpacked(command["key"])
        assert key is not None
        return {"partition": partition_for_key(key, command["partition_count"])}

    def open(self, command: Message) -> Message:
        """Create the clients."""
        self.close(command)
        self._bootstrap, self._tls = command["bootstrap"], tls_files(command.get("tls", {}))
        delivery_ms = command.get("delivery_timeout_ms", 30_000)
        self._producer = Producer(
            self._bootstrap,
            acks="all",
            delivery_timeout_ms=delivery_ms,
            max_block_ms=delivery_ms,
            request_timeout_ms=command.get("request_timeout_ms", 10_000),
            linger_ms=command.get("linger_ms", 0),
            tls=self._tls,
        )
        self._admin = Admin(self._bootstrap, tls=self._tls)
        return {}

    def produce(self, command: Message) -> Message:
        """Send all records and wait for their results."""
        producer = self._open_producer()
        futures: list[Any] = []
        for record in command["records"]:
            timestamp = record.get("timestamp_ms")
            try:
                future: Any = producer.send(
                    command["topic"],
                    unpacked(record.get("value")),
                    key=unpacked(record.get("key")),
                    partition=record.get("partition"),
                    headers=[(name, unpacked(value)) for name, value in record.get("headers", [])],
                    timestamp_ms=None if timestamp is None else int(timestamp),
                )
            except PacelineError as error:
                future = error
            futures.append(future)
        return {"results": [outcome_of(future) for future in futures]}

    def consume_open(self, command: Message) -> Message:
        """Create a consumer."""
        topic_partition = TopicPartition(command["topic"], command["partition"])
        consumer = Consumer(self._bootstrap, auto_offset_reset=command.get("reset", "earliest"), tls=self._tls)
        self._consumers[command["consumer"]] = consumer, topic_partition
        try:
            consumer.assign([topic_partition])
        except PacelineError as error:
            self._failed_consumers[command["consumer"]] = error
            return {}
        start = command.get("start", "earliest")
        if start == "earliest":
            consumer.seek_to_beginning()
        elif start == "latest":
            consumer.seek_to_end()
            consumer.position(topic_partition)
        else:
            consumer.seek(topic_partition, int(start))
        return {}

    def consume_poll(self, command: Message) -> Message:
        """Return records."""
        consumer, topic_partition = self._consumers[command["consumer"]]
        failed = self._failed_consumers.pop(command["consumer"], None)
        if failed is not None:
            raise failed
        try:
            found = consumer.poll(command.get("timeout_ms", 10_000), command.get("max_records", 100))
        except LogTruncatedError as error:
            truncated = {"position": str(error.position), "divergent_offset": str(error.divergent_offset)}
            return {"records": [], "truncated": truncated}
        return {"records": [record_fields(record) for record in found.get(topic_partition, [])], "truncated": None}

    def consume_close(self, command: Message) -> Message:
        """Close a consumer."""
        consumer, _ = self._consumers.pop(command["consumer"])
        consumer.close()
        return {}

    def group_open(self, command: Message) -> Message:
        """Create a member of a group and start to poll it."""
        self._members[command["member"]] = PythonMember(self._bootstrap, self._tls, command, error_fields)
        return {}

    def list_offset(self, command: Message) -> Message:
        """Return an offset of a partition."""
        topic_partition = TopicPartition(command["topic"], command["partition"])
        with Consumer(self._bootstrap, tls=self._tls) as consumer:
            if command["at"] == "earliest":
                offset: int | None = consumer.beginning_offsets([topic_partition])[topic_partition]
            elif command["at"] == "latest":
                offset = consumer.end_offsets([topic_partition])[topic_partition]
            else:
                found = consumer.offsets_for_times({topic_partition: int(command["timestamp_ms"])})[topic_partition]
                offset = None if found is None else found.offset
        return {"offset": None if offset is None else str(offset)}

    def create_topic(self, command: Message) -> Message:
        """Create a topic."""
        topic = NewTopic(
            command["topic"],
            command["partitions"],
            command["replication_factor"],
            configs=command.get("configs", {}),
        )
        (result,) = self._open_admin().create_topics([topic], timeout_ms=command.get("timeout_ms", 30_000))
        return {"topic_id": result.topic_id}

    def delete_topic(self, command: Message) -> Message:
        """Delete a topic."""
        self._open_admin().delete_topics([command["topic"]], timeout_ms=command.get("timeout_ms", 30_000))
        return {}

    def describe_topic(self, command: Message) -> Message:
        """Describe a topic."""
        (topic,) = self._open_admin().describe_topics([command["topic"]])
        return {
            "partitions": [
                {
                    "partition": one.partition,
                    "leader": one.leader,
                    "replicas": list(one.replicas),
                    "isr": list(one.isr),
                }
                for one in topic.partitions
            ]
        }

    def close(self, command: Message) -> Message:
        """Close every client."""
        for consumer, _ in self._consumers.values():
            consumer.close()
        self._consumers.clear()
        for member in self._members.values():
            member.close()
        self._members.clear()
        if self._producer is not None:
            self._producer.close(1.0)
            self._producer = None
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        return {}

    def _open_producer(self) -> Producer:
        if self._producer is None:
            raise InvalidRequestError("the producer is not open")
        return self._producer

    def _open_admin(self) -> Admin:
        if self._admin is None:
            raise InvalidRequestError("the admin client is not open")
        return self._admin


def outcome_of(future: Any) -> Message:
    """Return the result of one record."""
    try:
        if isinstance(future, PacelineError):
            raise future
        metadata = future.result(300.0)
    except PacelineError as error:
        return {"error": error_fields(error)}
    return {"partition": metadata.partition, "offset": str(metadata.offset)}


def error_fields(error: PacelineError) -> Message:
    """Return an error with the code of its last cause."""
    cause = error
    if isinstance(error, DeliveryFailedError | ProducerFatalError):
        cause = error.cause or error
    code = cause.code if cause.code in ErrorCode else ErrorCode.UNKNOWN_SERVER_ERROR
    return {"code": code.name, "message": str(error), "definite": error.definite}


def tls_files(given: Message) -> TlsFiles | None:
    """Return the certificate files of a command, None without any."""
    if not given:
        return None
    certificate, key = given.get("certificate_file"), given.get("key_file")
    return TlsFiles(Path(given["ca_file"]), certificate and Path(certificate), key and Path(key))


def record_fields(record: Any) -> Message:
    """Return a record as an object."""
    return {
        "partition": record.partition,
        "offset": str(record.offset),
        "key": packed(record.key),
        "value": packed(record.value),
        "headers": [[name, packed(value)] for name, value in record.headers],
        "timestamp_ms": None if record.timestamp_ms is None else str(record.timestamp_ms),
    }


def packed(data: bytes | None) -> str | None:
    """Return bytes as base64."""
    return None if data is None else base64.b64encode(data).decode()


def unpacked(text: str | None) -> bytes | None:
    """Return bytes from base64."""
    return None if text is None else base64.b64decode(text)


def main() -> None:
    """Answer commands until stdin ends."""
    driver = Driver()
    for line in sys.stdin:
        print(json.dumps(driver.answer(json.loads(line))), flush=True)
    driver.close({})


if __name__ == "__main__":
    main()
