#!/usr/bin/env python3
"""Write the table of errors in docs/clients.md and errors.json from the options of the protos; --check compares."""

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

from paceline.v1 import errors_pb2

ROOT: Final = Path(__file__).parents[1]
GUIDE: Final = ROOT / "docs" / "clients.md"
PROTO: Final = ROOT / "protos" / "paceline" / "v1" / "errors.proto"
TABLE: Final = PROTO.with_suffix(".json")
BEGIN: Final = "<!-- errors: written by scripts/errors_table.py -->\n"
END: Final = "<!-- errors end -->"


def rows() -> dict[str, dict[str, Any]]:
    """Return number, gRPC status and options of each error code by name."""
    found = {}
    for value in errors_pb2.ErrorCode.DESCRIPTOR.values:
        options = value.GetOptions().Extensions
        if value.number:
            found[value.name.removeprefix("ERROR_CODE_")] = {
                "number": value.number,
                "status": options[errors_pb2.grpc_status],
                "retriable": options[errors_pb2.retriable],
                "definite": options[errors_pb2.definite],
                "refresh_metadata": options[errors_pb2.refresh_metadata],
            }
    return found


def table() -> str:
    """Return the table: one row per error code."""
    lines = [
        "| Error | gRPC status | retriable | definite | refresh metadata | A client |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows().items():
        number, status, *flags = row.values()
        cells = [f"{name} ({number})", status, *("yes" if flag else "" for flag in flags), reaction(name, *flags)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def reaction(name: str, retriable: bool, definite: bool, refresh: bool) -> str:
    """Return the client's reaction to an error, as text."""
    special = {
        "OFFSET_OUT_OF_RANGE": "applies its reset policy",
        "OUT_OF_ORDER_SEQUENCE_NUMBER": "repeats the waiting batches under a new producer id: see Lost records",
        "INVALID_PRODUCER_EPOCH": "fails: another producer took over",
        "FETCH_SESSION_ID_NOT_FOUND": "begins with a full fetch",
        "INVALID_FETCH_SESSION_EPOCH": "begins with a full fetch",
        "THROTTLED": "repeats after the pause it names",
        "THROTTLING_QUOTA_EXCEEDED": "repeats after throttle_ms of the answer",
    }
    if name in special:
        return special[name]
    if not (retriable or refresh):
        return "tells the caller" if definite else "tells the caller that the outcome is unknown"
    repeats = "follows the hint or asks for metadata, then repeats" if refresh else "repeats after a pause"
    return repeats if definite else f"{repeats}, if idempotent"


def main() -> int:
    """Write or check."""
    guide = GUIDE.read_text()
    written = re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: BEGIN + table() + END, guide, flags=re.S)
    as_json = json.dumps(rows(), indent=2) + "\n"
    if "--check" in sys.argv:
        return int(written != guide or not TABLE.exists() or TABLE.read_text() != as_json)
    GUIDE.write_text(written)
    TABLE.write_text(as_json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
