"""How traces of newer protocols differ: there the controller writes ISRs for leaders (AlterPartition, KIP-497)."""

from typing import Any

from paceline.model.control import ControlRequest, LeaderAndIsrRequest, UpdateMetadataRequest
from tests.unit.controller.cluster import short

Json = dict[str, Any]


def isr_requests(step: Json) -> list[dict[str, int]]:
    """Return the ISR changes that leaders requested and the controller wrote: partitions and versions per request."""
    found = []
    for requests in step["requests"].values():
        for request in requests:
            if request["type"] in ("ALTER_ISR", "ALTER_PARTITION"):
                answers = ((topic["topic"], one) for topic in request["answers"] for one in topic["partitions"])
                versions = {
                    f"{topic}-{one['partitionIndex']}": one.get("currentIsrVersion", one.get("partitionEpoch"))
                    for topic, one in answers
                    if not one["errorCode"]
                }
                found.append(versions)
    return found


def without_recovery_state(data: Any) -> Any:
    """Remove the field that Kafka 3.2 and later add to a state after an unclean election (KIP-704); ours has none."""
    return {key: data[key] for key in data if key != "leader_recovery_state"} if isinstance(data, dict) else data


def shows_earlier(request: ControlRequest, partitions: dict[str, int]) -> bool:
    """Whether a request has only states older than the given versions."""
    return isinstance(request, UpdateMetadataRequest | LeaderAndIsrRequest) and all(
        one.zk_version < partitions.get(short(one.topic_partition), -1) for one in request.partitions
    )


def refused(step: Json) -> list[str]:
    """Return the partitions of requests to write an ISR that the controller refused."""
    asked = [one for requests in step["requests"].values() for one in requests if one["type"] == "ALTER_PARTITION"]
    return [
        f"{topic['topic']}-{answer['partitionIndex']}"
        for request in asked
        for topic in request["answers"]
        for answer in topic["partitions"]
        if answer["errorCode"]
    ]


def remove_repetition(rows: list[Json], name: str) -> None:
    """Remove the last UpdateMetadata of one partition, which repeats the one before: it followed a refused request."""
    alone = [row for row in rows if row["type"] == "UpdateMetadata" and row["partitions"].keys() == {name}]
    assert alone[-1] == alone[-2]
    rows.pop(max(index for index, row in enumerate(rows) if row is alone[-1]))
