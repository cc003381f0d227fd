"""Committed offsets and groups in the stored records of ``__consumer_offsets``, as rows."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from paceline.broker.groups.offsets_topic import OFFSETS_TOPIC
from paceline.broker.groups.records import GroupKey, decode_group_value, decode_key, decode_offset_value
from paceline.log.directory_names import parse_directory_name
from paceline.log.files import Files
from paceline.log.inspection.dump import UNREADABLE, Row, dump, log_folders
from paceline.model.consumer_protocol import decode_assignment, decode_subscription
from paceline.model.errors import InvalidRequestError


def group_rows(files: Files, directory: str) -> Iterator[Row]:
    """Yield a row per record, in the order of the log; logs of other topics in a log directory are not read.

    Raises:
        OSError: a file cannot be read.
    """
    for folder in log_folders(files, directory):
        tp = parse_directory_name(folder.rpartition("/")[2])
        if folder != directory and (tp is None or tp.topic != OFFSETS_TOPIC):
            continue
        for batch in dump(files, folder, with_records=True):
            if not batch["file"].endswith(".log"):
                continue
            place = {"file": f"{folder}/{batch['file']}".removeprefix(f"{directory}/"), "position": batch["position"]}
            for record in batch.get("records", ()):
                yield place | _decoded(record) | {"record_offset": record["offset"]}
            if "records" not in batch:
                message = batch.get("message") or batch.get("unreadable_records") or "the checksum is wrong"
                yield place | {"kind": UNREADABLE, "message": message}


def _decoded(record: Row) -> Row:
    if "control_type" in record:
        return {"kind": "transaction marker", "result": record["control_type"]}
    value = record["value"]
    try:
        key = decode_key(record["key"] or b"")
        if isinstance(key, GroupKey):
            row: Row = {"kind": "group", "group": key.group_id}
            row |= {} if value is None else asdict(decode_group_value(value))
            for member in row.get("members", ()):
                member["subscription"] = _embedded(decode_subscription, member["subscription"])
                member["assignment"] = _embedded(decode_assignment, member["assignment"])
        else:
            row = {"kind": "committed offset", "group": key.group_id, **key.topic_partition._asdict()}
            row |= {} if value is None else asdict(decode_offset_value(value))
    except InvalidRequestError as error:
        return {"kind": UNREADABLE, "message": str(error), "key": record["key"], "value": value}
    return row | {"deleted": value is None}


def _embedded(decode: Callable[[bytes], Any], data: bytes) -> Any:
    """Return a subscription or assignment; groups of another protocol than the consumers' keep their bytes."""
    try:
        return asdict(decode(data))
    except InvalidRequestError:
        return data
