"""One verdict for each invariant: valid, violated with evidence, or not exercised.

Source: docs/protocol/simulator.md#invariants.
"""

from dataclasses import dataclass, field

MAX_EVIDENCE = 32

INVARIANTS: dict[str, str] = {
    "C1": "no acknowledged record is lost",
    "C2": "every record in a final log was sent, and not refused",
    "C3": "one value per offset",
    "C4": "an idempotent producer's record occurs at most once",
    "C5": "offsets of a replica are dense",
    "C6": "nothing acknowledged is skipped by a reader of everything",
    "C7": "polled offsets rise and leave nothing out",
    "C8": "offsets follow real time",
    "C9": "only committed records are read",
    "C10": "end offsets told to a client do not go back",
    "C11": "sequences of a producer are contiguous, a repetition gets its first offset",
    "C12": "a deposed leader soon stops answering as leader",
    "C13": "the cluster is whole again in time after the last fault",
    "C14": "committed offsets go back only when a client commits a smaller one, and no acknowledged commit is lost",
    "C15": "a partition has one owner in a generation of a group, earlier generations commit nothing",
    "R1": "one leader per epoch",
    "R2": "leader epochs rise by one per decision and never fall",
    "R3": "replicas agree below the smaller high watermark",
    "R3b": "equal (offset, epoch) means equal prefix",
    "R4": "epochs along a log never fall, the epoch file agrees with the log",
    "R5": "a clean election picks a replica with everything committed",
    "R5b": "every ISR member has everything committed",
    "R6": "the high watermark counts every ISR member",
    "R7": "below min.insync.replicas nothing is committed or acknowledged",
    "R8": "the high watermark never falls and lies within the log",
    "R9": "nothing committed is truncated, a leader never truncates",
    "R10": "fetches and their answers count only in their epoch and request",
    "R11": "the leader is in the ISR, the ISR in the assignment",
    "R12": "no ISR update is lost",
    "R13": "who joins the ISR has caught up, and is who it was",
    "R14": "a restart loses nothing it should keep, its high watermark is true",
    "R15": "one fetcher per followed partition, none for a led one",
    "R16": "records stay with their topic id",
    "R17": "a deletion is complete",
    "R18": "a log starts where somebody asked, or retention says, and no deletion is taken back",
    "R19": "retention takes what is committed, and too old or too much",
    "R20": "after a cut no producer state and no snapshot lies beyond the log end",
    "R21": "a look-up by time finds the first record that reading would find",
    "R22": "compaction keeps the last record of each key at its offset, and takes committed ones under known settings",
    "K1": "one controller per controller epoch, which rises by one",
    "K2": "only the present controller writes, fenced",
    "K3": "what is announced was written before",
    "K4": "accepted controller epochs never fall",
    "K5": "requests for an earlier registration are refused, others are not",
    "K6": "cached leadership never goes back, nor do the brokers alive",
    "K7": "a resigned controller sends nothing and knows nothing",
    "K8": "another's /controller is deleted only in a transaction that elects the next controller",
    "K9": "a reassignment drops nobody before all targets are in sync",
    "K10": "what was begun is finished",
    "K11": "a controller acts on the registrations there are when it looks, not on earlier ones",
    "K12": "metadata becomes current",
    "K13": "a new controller's states are those in ZooKeeper, but for ISR writes of leaders",
    "K14": "a broker is suspected only on enough evidence, a third of all at once, and not soon after a heartbeat",
    "K15": "a registration is replaced only by the same broker's next process, fenced",
    "K16": "a replica is deleted only after a fenced write, or under a marker",
    "H26": "foreign data in a node harms nothing but the topic it names",
    "X1": "no callback and no event handler fails unexpectedly",
}


@dataclass(slots=True)
class Verdict:
    """The result of one invariant in one run."""

    exercised: int = 0
    evidence: list[str] = field(default_factory=list)
    violations: int = 0

    @property
    def word(self) -> str:
        """Return the verdict in a few words."""
        if self.violations:
            return "VIOLATED"
        return "valid" if self.exercised else "not exercised"


class Verdicts:
    """The verdicts of one run."""

    def __init__(self) -> None:
        self.all: dict[str, Verdict] = {name: Verdict() for name in INVARIANTS}

    def exercise(self, name: str, times: int = 1) -> None:
        """Count checks of an invariant."""
        self.all[name].exercised += times

    def fail(self, name: str, evidence: str) -> None:
        """Record a violation."""
        verdict = self.all[name]
        verdict.violations += 1
        if len(verdict.evidence) < MAX_EVIDENCE:
            verdict.evidence.append(evidence)

    def check(self, name: str, holds: bool, evidence: str) -> None:
        """Count a check, and record a violation if ``holds`` is false; for evidence that is cheap to build."""
        self.all[name].exercised += 1
        if not holds:
            self.fail(name, evidence)

    @property
    def violated(self) -> tuple[str, ...]:
        """Return the violated invariants, in the order of the table."""
        return tuple(name for name, verdict in self.all.items() if verdict.violations)
