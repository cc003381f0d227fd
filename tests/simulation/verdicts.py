"""One verdict for each invariant: valid, violated with evidence, or not exercised.

Source: docs/protocol/simulator.md#invariants.
"""

from dataclasses import dataclass, field

MAX_EVIDENCE = 32

INVARIANTS: dict[str, str] = {
    "C1": "no acknowledged record is lost",
    "C2": "every record in a final log was sent, and its send was not refused",
    "C3": "one value per offset",
    "C4": "an idempotent producer's record occurs at most once",
    "C5": "offsets of a replica are dense",
    "C6": "a reader of the whole log skips no acknowledged record",
    "C7": "polled offsets rise without gaps",
    "C8": "offsets follow real time",
    "C9": "only committed records are read",
    "C10": "the end offsets that a client receives do not fall",
    "C11": "sequences of a producer are contiguous, a duplicate gets the offset of the first append",
    "C12": "a deposed leader soon stops answering as leader",
    "C13": "the cluster is complete again in time after the last fault",
    "C14": "committed offsets fall only by a commit of a smaller offset, and no acknowledged commit is lost",
    "C15": "a partition has one owner in a generation of a group, earlier generations cannot commit",
    "C16": "a partition with other in-sync replicas accepts acks=all again soon after its leader became unreachable",
    "R1": "one leader per epoch",
    "R2": "leader epochs rise by one per decision and never fall",
    "R3": "replicas agree below the smaller high watermark",
    "R3b": "equal (offset, epoch) means equal prefix",
    "R4": "epochs along a log never fall, the epoch file agrees with the log",
    "R5": "a clean election picks a replica with everything committed",
    "R5b": "every ISR member has everything committed",
    "R6": "the high watermark counts every ISR member",
    "R7": "below min.insync.replicas no record is committed or acknowledged",
    "R8": "the high watermark never falls and lies within the log",
    "R9": "no committed record is truncated, a leader never truncates",
    "R10": "fetches and their answers count only in their epoch and request",
    "R11": "the leader is in the ISR, the ISR in the assignment",
    "R12": "no ISR update is lost",
    "R13": "a replica that joins the ISR has caught up, with the present registration of its broker",
    "R14": "a restart loses no durable record, and its high watermark is not too high",
    "R15": "one fetcher per followed partition, none for a led partition",
    "R16": "records stay with their topic id",
    "R17": "a deletion is complete",
    "R18": "a log start comes from a request or from retention, and no deletion is undone",
    "R19": "retention deletes only committed segments that are too old or exceed the size",
    "R20": "after a truncation no producer state and no snapshot is above the log end",
    "R21": "a lookup by time finds the same record as a scan of the log",
    "R22": "compaction keeps the last record of each key at its offset, and needs known settings and committed records",
    "R23": "a full disk takes no log directory offline",
    "R24": "a move between directories keeps the log and its high watermark, and leaves one copy",
    "K1": "one controller per controller epoch, which rises by one",
    "K2": "only the present controller writes, fenced",
    "K3": "every announced state was written before",
    "K4": "accepted controller epochs never fall",
    "K5": "only requests for an earlier registration are refused",
    "K6": "cached leadership and live brokers are never replaced by older ones",
    "K7": "a resigned controller sends no request and has no cluster state",
    "K8": "another's /controller is deleted only in a transaction that elects the next controller",
    "K9": "a reassignment removes no replica before all targets are in sync",
    "K10": "every started operation completes",
    "K11": "a controller acts on present registrations, not on those of an earlier read",
    "K12": "metadata becomes current",
    "K13": "a new controller's states equal those in ZooKeeper, except for ISR writes of leaders",
    "K14": "a broker is suspected only on enough evidence, a third of all at once, and not soon after a heartbeat",
    "K15": "a registration is replaced only by the same broker's next process, fenced",
    "K16": "a replica is deleted only after a fenced write, or under a marker",
    "K17": "a broker counts as unreached on enough reports, and then other in-sync replicas are elected for 30 s",
    "H26": "invalid data in a node harms only the topic of the node",
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
