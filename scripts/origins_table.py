"""Writes docs/origins.md: which tests show that each system of the source designs works, and whether they pass.

    .venv/bin/python scripts/origins_table.py                    # names only, results left as they are in the file
    .venv/bin/python scripts/origins_table.py --run              # runs the tests of all rows and notes the results
    .venv/bin/python scripts/origins_table.py --junit report.xml # takes the results from a run of your own

A test belongs to a row when its name carries the row: ``test_s1_2_...`` or ``test_q9_s1_5_...`` show S1-2 and S1-5.

Each row carries a digest of the files that hold its tests. A result belongs to the digest it was measured with: when a
file has changed since, the row says ``not run since the test changed`` until its tests run again.
"""

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "origins.md"
NOT_RUN_SINCE = "not run since the test changed"
_ROW = re.compile(r"(?:^test|_)_?s([0-4])_(\d{1,2})(?=_)")

GROUPS = {
    0: "Replication led by the leaders, without a controller",
    1: "The draft of a controller",
    2: "The replica manager",
    3: "Failover, and topics with a single replica",
    4: "The controller's ZooKeeper handlers",
}

ROWS: dict[str, str] = {
    "S0-1": "A queue of orders per broker: in order, and no order is lost when either side restarts.",
    "S0-2": "A full queue keeps the newest close of each partition; today a deletion's intent has a node of its own.",
    "S0-3": "Starting a replica counts only in the leader's current epoch.",
    "S0-4": "Closing a replica of a deleted topic counts at any epoch.",
    "S0-5": "An order is done before it is removed, so a crash repeats it instead of losing it.",
    "S0-6": "One leader per partition; the preferred replica first, out-of-sync ones only as a last resort.",
    "S0-7": "Followers switch to the new leader.",
    "S0-8": "A record is committed when the whole ISR has it; a stuck follower delays that for a limited time.",
    "S0-9": "A replica joins the ISR again when it has caught up, and not before.",
    "S0-10": "The high watermark never moves back, and its checkpoint never exceeds it.",
    "S0-11": "How long a follower may lag before it leaves the ISR.",
    "S0-12": "Leadership returns to the preferred replica when that is in sync.",
    "S0-13": "A new target makes new replicas fetch; deleting is a request of its own.",
    "S0-14": "Old replicas are closed after all new ones have caught up, the leader last.",
    "S0-15": "A reassignment can be interrupted between any two steps.",
    "S0-16": "A refused deletion is retried; a reassignment waits for no answer.",
    "S1-1": "A change of brokers elects leaders only for partitions whose leader died.",
    "S1-2": "Leader election from assignment, ISR and live brokers, without overwriting the leader's own ISR change.",
    "S1-3": "An ISR write based on an old version fails.",
    "S1-4": "A new topic's first live replica becomes leader; the ISR is all live replicas.",
    "S1-5": "A new controller sends all states to every broker again, which changes nothing.",
    "S1-6": "A starting broker gets all metadata, then its own partitions.",
    "S1-7": "A reassignment completes on the event of the ISR change, without polling.",
    "S1-8": "Repeated and reordered old requests have no effect.",
    "S1-9": "A partition without a live replica waits, and returns with an eligible replica.",
    "S1-10": "A broker that was down receives missed requests when it returns; deletions wait for it.",
    "S1-11": "Leaderless partitions without a dead broker: a failed disk, or unclean election disabled.",
    "S1-12": "Spans of a leader change: on virtual time, and of real processes by `paceline pipeline analyse`.",
    "S1-13": "Requests and messages of both designs after a death, counted on a real ZooKeeper.",
    "S1-14": "10 000 elections at 2 ms a request: sequential, pipelined, batched.",
    "S1-15": "Without a durable queue the next controller sends all requests again.",
    "S2-1": "Unknown, online and offline partitions, and the answer of each operation.",
    "S2-2": "Which LeaderAndIsr requests are accepted: epochs of broker, controller and leader.",
    "S2-3": "Leaders and followers in one request, beside a dead disk; metrics follow the role.",
    "S2-4": "No checkpoint before the first request; leadership starts and stops the group coordinator.",
    "S2-5": "Becoming a leader: fetchers stop first, end offsets of followers are unknown.",
    "S2-6": "Becoming a follower: the steps in order, and no further fetch from the old leader.",
    "S2-7": "A follower has no ISR of its own.",
    "S2-8": "Shrinking the ISR: after the limit, at the latest after one and a half.",
    "S2-9": "Requests that waited for a removed follower complete.",
    "S2-10": "When ISR changes are notified to the controller.",
    "S2-11": "Which partitions an ISR notification lists.",
    "S3-1": "A broker's registration ends with its session, or at once with an orderly stop.",
    "S3-2": "A broker dies while a topic is being deleted: one event halts the deletion and elects leaders.",
    "S3-3": "Only partitions led by the dead broker get a new leader.",
    "S3-4": "Which transitions of a partition are allowed.",
    "S3-5": "A state written by a newer controller is not overwritten.",
    "S3-6": "The offline election, example by example.",
    "S3-7": "A single replica goes down and comes back.",
    "S3-8": "Moving a single replica under load before its broker stops.",
    "S3-9": "A controlled shutdown; single replicas do not block it.",
    "S4-1": "Each watch fires its event, and is set again.",
    "S4-2": "New brokers are handled before restarted ones, restarted ones before dead ones.",
    "S4-3": "No request is sent to a broker after its removal.",
    "S4-4": "A new topic, step by step, also one that is deleted meanwhile.",
    "S4-5": "Partitions added to a topic that is being deleted are removed again.",
    "S4-6": "Deletion markers: of known topics, of unknown ones, and with deletion disabled.",
    "S4-7": "A deletion waits for a broker that is down, but not for a reassignment, which it ends.",
    "S4-8": "Only failed deletions of replicas are retried.",
    "S4-9": "A re-created topic is a new topic.",
    "S4-10": "A failed log directory takes its own replicas offline.",
    "S4-11": "Notifications of ISR changes are sent to brokers and deleted, also after a failure.",
    "S4-12": "A preferred election requested in the admin node.",
    "S4-13": "The writes of a reassignment to topic node and state.",
    "S4-14": "The state node's event completes a reassignment.",
    "S4-15": "Rewriting the admin node starts no reassignment.",
}


@dataclass(frozen=True)
class Evidence:
    """One test function with all its parameters."""

    path: str
    name: str

    @property
    def rows(self) -> list[str]:
        """Rows named in the function's name."""
        return [f"S{group}-{number}" for group, number in _ROW.findall(self.name)]


class Result(NamedTuple):
    """How the tests of a row ended, and the digest of the tests that ran."""

    word: str
    digest: str


class Figure(NamedTuple):
    """A figure that a test measured."""

    row: str
    name: str
    value: str


def collected() -> list[Evidence]:
    """Return the test functions that pytest collects and whose names carry a row, in the order of collection.

    Raises:
        RuntimeError: pytest could not collect a file.
    """
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:warnings", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"tests could not be collected:\n{done.stdout[-3_000:]}{done.stderr[-1_000:]}")
    found: dict[Evidence, None] = {}
    for line in done.stdout.splitlines():
        match = re.match(r"(tests/[^:\s]+\.py)::(?:\w+::)*(\w+)", line)
        if match and _ROW.search(match[2]):
            found[Evidence(match[1], match[2])] = None
    return list(found)


def by_row(tests: Iterable[Evidence]) -> dict[str, list[Evidence]]:
    """Return the tests of every row, including rows without tests."""
    table: dict[str, list[Evidence]] = {row: [] for row in ROWS}
    for test in sorted(tests, key=lambda one: (one.path, one.name)):
        for row in test.rows:
            table.setdefault(row, []).append(test)
    return table


def digests_of(table: Mapping[str, Iterable[Evidence]]) -> dict[str, str]:
    """Return a short digest of the files that hold each row's tests."""
    digests = {}
    for row, tests in table.items():
        whole = hashlib.sha256()
        for path in sorted({test.path for test in tests}):
            whole.update(hashlib.sha256((ROOT / path).read_bytes()).digest())
        digests[row] = whole.hexdigest()[:10]
    return digests


def results_of(report: Path) -> dict[Evidence, str]:
    """Read a JUnit report: ``pass``, ``fail`` or ``skipped`` for each test, the worst of its parameters."""
    rank = {"pass": 0, "skipped": 1, "fail": 2}
    found: dict[Evidence, str] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        module = case.get("classname", "").replace(".", "/") + ".py"
        test = Evidence(module, re.sub(r"\[.*", "", case.get("name", ""), flags=re.DOTALL))
        bad = case.find("failure") is not None or case.find("error") is not None
        result = "fail" if bad else "skipped" if case.find("skipped") is not None else "pass"
        found[test] = max(found.get(test, "pass"), result, key=rank.__getitem__)
    return found


def run(tests: Iterable[Evidence]) -> tuple[dict[Evidence, str], list[Figure]]:
    """Run tests and return their results and figures."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        names = sorted({f"{test.path}::{test.name}" for test in tests})
        family = "junit_family=xunit1"  # the report format that allows the figures recorded by tests as properties
        command = [sys.executable, "-m", "pytest", "-q", "-o", family, f"--junitxml={report}", *names]
        subprocess.run(command, cwd=ROOT, check=False)
        return results_of(report), figures_of(report)


def figures_of(report: Path) -> list[Figure]:
    """Read the figures that tests of rows recorded, in the order of the report."""
    return [
        Figure(row, prop.get("name", ""), prop.get("value", ""))
        for case in ElementTree.parse(report).getroot().iter("testcase")
        for prop in case.iter("property")
        for row in Evidence("", case.get("name", "")).rows
    ]


def known_figures(text: str) -> list[Figure]:
    """Return the figures in a document."""
    return [Figure(*match) for match in re.findall(r"^\| (S\d-\d+) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)]


def known_results(text: str) -> dict[str, Result]:
    """Return the result and the digest of each row in a document."""
    rows = re.finditer(r"^\| (S\d-\d+) \| [^|]* \| [^|]* \| `(\w*)` \| ([^|]*) \|$", text, re.MULTILINE)
    return {row[1]: Result(row[3], row[2]) for row in rows}


def valid_results(results: Mapping[str, Result], digests: Mapping[str, str]) -> dict[str, Result]:
    """Return the results whose tests have not changed; for other rows the result is `NOT_RUN_SINCE`."""
    return {
        row: results[row] if row in results and results[row].digest == digest else Result(NOT_RUN_SINCE, digest)
        for row, digest in digests.items()
    }


def row_result(tests: Iterable[Evidence], results: Mapping[Evidence, str]) -> str:
    """Return the result of a row as a word: ``pass`` only if all its tests ran and passed."""
    found = [results.get(test, "not run") for test in tests]
    for word in ("fail", "not run", "skipped"):
        if word in found:
            return word
    return "pass" if found else "no test"


def document(table: Mapping[str, list[Evidence]], results: Mapping[str, Result], figures: Iterable[Figure]) -> str:
    """Return the text of docs/origins.md."""
    lines = [
        "# Where each idea comes from, and the test that shows it",
        "",
        "Paceline goes back to five texts: the first design of replication (S0), the draft of a controller (S1),",
        "lessons on the replica manager (S2) and on failover (S3), and a description of the controller's ZooKeeper",
        "handlers (S4). Each row is one system in them. Designs that are history are kept small in `tests/origins`,",
        "where they are tested beside their successors.",
        "",
        "`make origins` runs the tests of all rows and writes this file; `scripts/origins_table.py --run --rows S1-2`",
        "runs those of some rows. The digest is of the files that hold a row's tests. When one of them changes, a unit",
        "test fails until `scripts/origins_table.py` has written this file again, and the row says",
        f"`{NOT_RUN_SINCE}` until its tests have run.",
    ]
    for group, title in GROUPS.items():
        lines += ["", f"## S{group}: {title}", "", "| Row | Contents | Tests | Digest | Result |"]
        lines += ["|---|---|---|---|---|"]
        for row, tests in table.items():
            if row.startswith(f"S{group}-"):
                names = "<br>".join(f"[{test.name}](../{test.path})" for test in tests)
                result = results[row]
                lines.append(f"| {row} | {ROWS.get(row, '')} | {names} | `{result.digest}` | {result.word} |")
    lines += ["", "## Figures", ""]
    lines += [
        "S1-12 and S1-14: on virtual time, with a ZooKeeper that takes 2 ms for each request; they show the order of",
        "the steps and the number of round trips. Those of real processes come from the events of a cluster",
        "whose leader was killed, as `paceline pipeline analyse` computes them; `make bench-control` measures many.",
        "Closing takes no virtual time, so an orderly stop is measured on real processes, like the truncation of",
        "a leader that returns, from its start as follower.",
        "S1-13: counted at the clients of a real ZooKeeper, from the end of the dead broker's session.",
    ]
    lines += ["", "| Row | Figure | Value |", "|---|---|---|"]
    lines += [f"| {figure.row} | {figure.name} | {figure.value} |" for figure in figures]
    return "\n".join([*lines, ""])


def main() -> None:
    """Update docs/origins.md and print the rows that have not passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run the tests of all rows, or of those after --rows")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW", help="such as S1-2")
    parser.add_argument("--junit", type=Path, help="take results from this report")
    arguments = parser.parse_args()
    table = by_row(collected())
    digests = digests_of(table)
    text = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    results, figures = valid_results(known_results(text), digests), known_figures(text)
    if arguments.junit or arguments.run:
        report = arguments.junit
        wanted = [test for row in arguments.rows for test in table[row]]
        found, measured = (results_of(report), figures_of(report)) if report else run(wanted)
        for row in arguments.rows:
            results[row] = Result(row_result(table[row], found), digests[row])
        figures = merged(figures, measured, arguments.rows)
    DOCUMENT.write_text(document(table, results, figures), encoding="utf-8")
    for row, row_tests in table.items():
        if not row_tests or results[row].word != "pass":
            print(f"{row}: {results[row].word if row_tests else 'no test'}")


def merged(known: Iterable[Figure], measured: Iterable[Figure], rows: Iterable[str]) -> list[Figure]:
    """Return the known figures; for rows that were measured, the measured figures replace them."""
    new = list(measured)
    replaced = {figure.row for figure in new} & set(rows)
    kept = [figure for figure in known if figure.row not in replaced]
    return sorted([*kept, *(figure for figure in new if figure.row in replaced)], key=lambda figure: figure.row)


if __name__ == "__main__":
    main()
