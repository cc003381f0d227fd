"""Links between nodes: delay, loss, duplication, reordering, one-way cuts. Calls have deadlines and end once.

A call is a request message and a reply message. A lost request, a lost reply and a cut look alike to the caller: the
deadline passes. When the called process dies, the connection is reset and the caller is notified at once, unless the
link is cut. The receiver handles a duplicated request twice, like a gRPC call that was cancelled and retried. A reply
after the deadline is dropped, as in gRPC; an earlier reply may still reach a caller that no longer waits. Each link has
its own random stream, so a fault on one link does not change the others.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tests.simulation.world import MILLISECOND, NodeScheduler, Timer, World

T = TypeVar("T")


class Unreachable(Exception):  # noqa: N818 - it is what gRPC would say, not an error of ours
    """The call did not end within its deadline, or the other side refused or reset the connection."""


class ConnectionClosed(Unreachable):
    """The other side, or a middlebox, refused or reset the connection."""


@dataclass(slots=True)
class LinkQuality:
    """Quality of a network; probabilities per message."""

    delay_us: tuple[int, int] = (200, 2_000)
    loss: float = 0.0
    duplicate: float = 0.0
    straggler: float = 0.0
    """Probability of an extra delay of up to `straggler_us`, by which later messages overtake this message."""
    straggler_us: int = 800_000


@dataclass(slots=True, eq=False)
class Peer:
    """A process as a network node."""

    name: str
    scheduler: NodeScheduler


class Network:
    """All links of a run. Nodes have names; a restarted process is a new `Peer` with the same name."""

    def __init__(self, world: World, quality: LinkQuality) -> None:
        self._world = world
        self._streams: dict[tuple[str, str], random.Random] = {}
        self.quality = quality
        self.peers: dict[str, Peer] = {}
        self._cut: dict[tuple[str, str], None] = {}
        self._hidden: dict[str, None] = {}
        """Processes whose REPLICATION listener refuses connections."""
        self._open: dict[str, dict[_Call[Any], None]] = {}
        self.messages = 0
        self.lost = 0
        self.duplicated = 0

    def attach(self, peer: Peer) -> None:
        """Connect a started process."""
        self.peers[peer.name] = peer

    def detach(self, name: str) -> None:
        """Reset the connections to a dead process, and refuse later connections."""
        if self.peers.pop(name, None) is None:
            return
        for call in tuple(self._open.get(name, ())):
            if not self.is_cut(name, call.caller.name):
                self._finish_later(name, call, ConnectionClosed(f"{name} has gone"))

    def reset(self, name: str) -> None:
        """Reset every connection to a running process, as a middlebox may do."""
        for call in tuple(self._open.get(name, ())):
            self._finish_later(name, call, ConnectionClosed(f"the connection to {name} was reset"))

    def cut(self, source: str, target: str) -> None:
        """Drop every message from ``source`` to ``target``."""
        self._cut[(source, target)] = None

    def mend(self, source: str, target: str) -> None:
        """Deliver messages from ``source`` to ``target`` again."""
        self._cut.pop((source, target), None)

    def hide(self, name: str, drops: bool) -> None:
        """Refuse connections to the REPLICATION listener of a process, or drop them; other listeners work."""
        self._hidden[name] = None
        for caller in self.peers if drops else ():
            self.cut(caller, f"{name}/REPLICATION")

    def show(self, name: str) -> None:
        """Let the REPLICATION listener of a process be reached again."""
        self._hidden.pop(name, None)
        for pair in [pair for pair in self._cut if pair[1] == f"{name}/REPLICATION"]:
            del self._cut[pair]

    def is_hidden(self, name: str) -> bool:
        """Whether the REPLICATION listener of a process is hidden."""
        return name in self._hidden

    def replication_listener(self, name: str) -> str:
        """Return the name to call for replication; no process has the name of a hidden listener."""
        return f"{name}/REPLICATION" if name in self._hidden else name

    def heal(self) -> None:
        """End all cuts."""
        self._cut.clear()
        self._hidden.clear()
        self.quality = LinkQuality()

    def is_cut(self, source: str, target: str) -> bool:
        """Whether messages from ``source`` to ``target`` are dropped."""
        return (source, target) in self._cut

    def call(
        self,
        caller: Peer,
        target: str,
        handle: Callable[[Callable[[T | Exception], None]], None],
        timeout_ms: int,
        on_done: Callable[[T | Exception], None],
    ) -> None:
        """Carry a request to ``target``, run ``handle(reply)`` there, and carry the reply back.

        ``handle`` runs on the target's scheduler and calls ``reply`` zero or one time, now or later. ``on_done`` runs
        on the caller's scheduler exactly once: with the reply, or with `Unreachable` at the deadline or when refused.
        """
        call: _Call[T] = _Call(self, caller, target, on_done)
        if target not in self.peers and not self.is_cut(caller.name, target):
            self._finish_later(target, call, ConnectionClosed(f"{target} refused the connection"))
            return
        self._open.setdefault(target, {})[call] = None
        call.deadline = self._world.after(
            timeout_ms * MILLISECOND, lambda: call.finish(Unreachable(f"deadline of {timeout_ms} ms"))
        )
        for _ in range(self._copies(caller.name, target)):
            self._carry(caller.name, target, lambda: self._arrive(call, target, handle))

    def forget(self, call: "_Call[Any]") -> None:
        """Remove a call that has ended."""
        self._open.get(call.target, {}).pop(call, None)

    def _arrive(self, call: "_Call[T]", target: str, handle: Callable[[Callable[[T | Exception], None]], None]) -> None:
        peer = self.peers.get(target)
        if peer is None:
            return

        def reply(answer: T | Exception) -> None:
            if self.peers.get(target) is not peer:
                return
            for _ in range(self._copies(target, call.caller.name)):
                self._carry(target, call.caller.name, lambda: call.finish(answer))

        peer.scheduler.deliver(lambda: handle(reply))

    def _finish_later(self, target: str, call: "_Call[T]", answer: Exception) -> None:
        self._world.after(self._delay(target, call.caller.name), lambda: call.finish(answer))

    def _carry(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        self.messages += 1
        if self.is_cut(source, target) or (
            self.quality.loss and self._stream(source, target).random() < self.quality.loss
        ):
            self.lost += 1
            return
        self._world.after(self._delay(source, target), lambda: None if (source, target) in self._cut else arrive())

    def _copies(self, source: str, target: str) -> int:
        if self.quality.duplicate and self._stream(source, target).random() < self.quality.duplicate:
            self.duplicated += 1
            return 2
        return 1

    def _delay(self, source: str, target: str) -> int:
        stream = self._stream(source, target)
        low, high = self.quality.delay_us
        delay = low + int(stream.random() * (high - low))
        if self.quality.straggler and stream.random() < self.quality.straggler:
            delay += stream.randint(0, self.quality.straggler_us)
        return delay

    def _stream(self, source: str, target: str) -> random.Random:
        stream = self._streams.get((source, target))
        if stream is None:
            stream = self._streams[source, target] = self._world.chance(f"link/{source}/{target}")
        return stream


class _Call(Generic[T]):
    """One call of one caller; ends once, on the caller's scheduler."""

    __slots__ = ("_network", "_on_done", "_over", "caller", "deadline", "target")

    def __init__(self, network: Network, caller: Peer, target: str, on_done: Callable[[T | Exception], None]) -> None:
        self._network = network
        self.caller = caller
        self.target = target
        self._on_done = on_done
        self._over = False
        self.deadline: Timer | None = None

    def finish(self, answer: T | Exception) -> None:
        """End the call with this answer, unless it has ended already."""
        if self._over:
            return
        self._over = True
        if self.deadline is not None:
            self.deadline.cancel()
        self._network.forget(self)
        self.caller.scheduler.deliver(lambda: self._on_done(answer))
