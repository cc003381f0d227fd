"""The scenarios as data; some are expanded to one scenario per error code."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from paceline.v1 import errors_pb2

FOLDER: Final = Path(__file__).parent / "scenarios"
CLUSTERS: Final = ("none", "scripted", "real")

Step = dict[str, Any]


@dataclass(frozen=True)
class ErrorFacts:
    """Properties of an error code in the protobuf descriptor."""

    name: str
    retriable: bool
    definite: bool
    refresh_metadata: bool

    @property
    def is_repeated(self) -> bool:
        """Whether a client retries an idempotent request after this error."""
        return self.retriable or self.refresh_metadata


def error_facts() -> list[ErrorFacts]:
    """Return every error code with its options from the descriptor, as every language can read them."""
    found = []
    for value in errors_pb2.ErrorCode.DESCRIPTOR.values:
        options = value.GetOptions().Extensions
        if value.number:
            found.append(
                ErrorFacts(
                    value.name.removeprefix("ERROR_CODE_"),
                    options[errors_pb2.retriable],
                    options[errors_pb2.definite],
                    options[errors_pb2.refresh_metadata],
                )
            )
    return found


@dataclass(frozen=True)
class Scenario:
    """A scenario."""

    name: str
    group: str
    cluster: str
    steps: tuple[Step, ...]


def all_scenarios() -> list[Scenario]:
    """Return the scenarios of every file, in the order of the files' names.

    Raises:
        ValueError: two have the same name, or a field is missing.
    """
    found: list[Scenario] = []
    for path in sorted(FOLDER.glob("*.json")):
        for fields in json.loads(path.read_text()):
            found += _expanded(fields, path)
    names = [scenario.name for scenario in found]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ValueError(f"scenarios with the same name: {sorted(repeated)}")
    return found


def _expanded(fields: dict[str, Any], path: Path) -> list[Scenario]:
    missing = [key for key in ("name", "group", "cluster", "steps") if key not in fields]
    if missing or fields["cluster"] not in CLUSTERS:
        raise ValueError(f"{path.name}: {fields.get('name')}: {missing or fields['cluster']}")
    if not fields.get("for_each_error"):
        return [Scenario(fields["name"], fields["group"], fields["cluster"], tuple(fields["steps"]))]
    found = []
    exceptions: dict[str, str] = fields.get("exceptions", {})
    for facts in error_facts():
        outcome = exceptions.get(facts.name, "repeated" if facts.is_repeated else "failed")
        if outcome == "skipped":
            continue
        steps = [*fields["steps"], *fields[f"when_{outcome}"]]
        text = json.dumps(steps).replace('"$definite"', json.dumps(facts.definite)).replace("$code", facts.name)
        name = f"{fields['name']}: {facts.name}"
        found.append(Scenario(name, fields["group"], fields["cluster"], tuple(json.loads(text))))
    return found
