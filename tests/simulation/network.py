"""Links between nodes: delay, loss, duplication, reordering, one-way cuts. Calls have deadlines and end once.

A call is a request message and a reply message. A lost request, a lost reply and a cut all look alike to the caller:
its deadline passes. A duplicated request is handled twice by the receiver, as a gRPC call that was abandoned and sent
again may be. A reply that comes after the deadline is thrown away, as gRPC does; one that comes before may still meet
a caller that has lost interest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.simulation.world import MILLISECOND, NodeScheduler, World

T = TypeVar("T")


class Unreachable(Exception):  # noqa: N818 - it is what gRPC would say, not an error of ours
    """The call did not end within its deadline, or the other side refused the connection."""


@dataclass(slots=True)
class LinkQuality:
    """How bad a network is; probabilities per message."""

    delay_us: tuple[int, int] = (200, 2_000)
    loss: float = 0.0
    duplicate: float = 0.0
    straggler: float = 0.0
    """Probability that a message takes up to `straggler_us` more, and so is overtaken."""
    straggler_us: int = 800_000


@dataclass(slots=True)
class Peer:
    """One life of one process as the network sees it."""

    name: str
    scheduler: NodeScheduler


class Network:
    """All links of a run. Nodes are named; a restarted process is a new `Peer` under the old name."""

    def __init__(self, world: World, quality: LinkQuality) -> None:
        self._world = world
        self._chance = world.chance("network")
        self.quality = quality
        self.peers: dict[str, Peer] = {}
        self._cut: set[tuple[str, str]] = set()
        self.messages = 0
        self.lost = 0
        self.duplicated = 0

    def attach(self, peer: Peer) -> None:
        """A process has come up."""
        self.peers[peer.name] = peer

    def detach(self, name: str) -> None:
        """A process is gone: connections to it are refused."""
        self.peers.pop(name, None)

    def cut(self, source: str, target: str) -> None:
        """Drop every message from ``source`` to ``target``."""
        self._cut.add((source, target))

    def heal(self) -> None:
        """Let everything through again."""
        self._cut.clear()
        self.quality = LinkQuality()

    def is_cut(self, source: str, target: str) -> bool:
        """Whether messages from ``source`` to ``target`` are dropped."""
        return (source, target) in self._cut

    def call(
        self,
        caller: Peer,
        target: str,
        handle: Callable[[Callable[[T], None]], None],
        timeout_ms: int,
        on_done: Callable[[T | Exception], None],
    ) -> None:
        """Carry a request to ``target``, run ``handle(reply)`` there, and carry the reply back.

        ``handle`` runs on the target's scheduler and calls ``reply`` zero or one time, now or later. ``on_done`` runs
        on the caller's scheduler exactly once: with the reply, or with `Unreachable` at the deadline or when refused.
        """
        call = _Call(self, caller, target, on_done)
        if target not in self.peers and not self.is_cut(caller.name, target):
            self._world.after(self._delay(), lambda: call.finish(Unreachable(f"{target} refused the connection")))
            return
        self._world.after(timeout_ms * MILLISECOND, lambda: call.finish(Unreachable(f"deadline of {timeout_ms} ms")))
        for _ in range(self._copies()):
            self._carry(caller.name, target, lambda: self._arrive(call, target, handle))

    def _arrive(self, call: "_Call[T]", target: str, handle: Callable[[Callable[[T], None]], None]) -> None:
        peer = self.peers.get(target)
        if peer is None:
            return

        def reply(answer: T) -> None:
            for _ in range(self._copies()):
                self._carry(target, call.caller.name, lambda: call.finish(answer))

        peer.scheduler.deliver(lambda: handle(reply))

    def _carry(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        self.messages += 1
        if self.is_cut(source, target) or self._chance.random() < self.quality.loss:
            self.lost += 1
            return
        self._world.after(self._delay(), lambda: None if self.is_cut(source, target) else arrive())

    def _copies(self) -> int:
        if self._chance.random() < self.quality.duplicate:
            self.duplicated += 1
            return 2
        return 1

    def _delay(self) -> int:
        delay = self._chance.randint(*self.quality.delay_us)
        if self._chance.random() < self.quality.straggler:
            delay += self._chance.randint(0, self.quality.straggler_us)
        return delay


class _Call(Generic[T]):
    """One call of one caller; ends once, on the caller's scheduler."""

    __slots__ = ("_network", "_on_done", "_over", "_target", "caller")

    def __init__(self, network: Network, caller: Peer, target: str, on_done: Callable[[T | Exception], None]) -> None:
        self._network = network
        self.caller = caller
        self._target = target
        self._on_done = on_done
        self._over = False

    def finish(self, answer: T | Exception) -> None:
        if self._over:
            return
        self._over = True
        self.caller.scheduler.deliver(lambda: self._on_done(answer))
