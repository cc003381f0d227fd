"""Waiting operations are checked, watched and checked again, and complete exactly once."""

from collections.abc import Callable

from paceline.replication.purgatory import DelayedOperation, Purgatory
from tests.support.virtual_time import VirtualTime


class Operation(DelayedOperation):
    def __init__(self, ready: Callable[[], bool]) -> None:
        super().__init__()
        self._ready = ready
        self.checks = 0
        self.completions = 0

    def advance(self) -> bool:
        self.checks += 1
        return self._ready()

    def on_complete(self) -> None:
        self.completions += 1


def test_an_operation_that_is_ready_completes_at_once_and_is_not_watched() -> None:
    time = VirtualTime()
    purgatory = Purgatory(time)
    operation = Operation(lambda: True)
    assert purgatory.complete_or_watch(operation, ["a"], 100)
    time.run_for(1_000)
    assert (operation.completions, purgatory.expired_count, purgatory.delayed_count) == (1, 0, 0)


def test_a_condition_fulfilled_between_check_and_watch_completes_the_operation() -> None:
    purgatory = Purgatory(VirtualTime())
    answers = iter([False, True])
    operation = Operation(lambda: next(answers))
    assert purgatory.complete_or_watch(operation, ["a"], 100)
    assert operation.completions == 1 and not purgatory._watchers


def test_any_key_completes_an_operation_once_and_removes_it_from_all_keys() -> None:
    time = VirtualTime()
    purgatory = Purgatory(time)
    state = {"ready": False}
    operation = Operation(lambda: state["ready"])
    assert not purgatory.complete_or_watch(operation, ["a", "b", "a"], 100)
    assert purgatory.check_and_complete("a") == 0
    state["ready"] = True
    assert purgatory.check_and_complete("b") == 1
    assert purgatory.check_and_complete("a") == 0
    time.run_for(1_000)
    assert (operation.completions, purgatory.expired_count) == (1, 0)
    assert not purgatory._watchers and purgatory.delayed_count == 0


def test_a_timeout_completes_an_operation_and_counts_the_expiration_once() -> None:
    time = VirtualTime()
    purgatory = Purgatory(time)
    operation = Operation(lambda: False)
    purgatory.complete_or_watch(operation, ["a"], 100)
    time.run_for(99)
    assert operation.completions == 0
    time.run_for(1)
    assert (operation.completions, purgatory.expired_count) == (1, 1)
    assert purgatory.check_and_complete("a") == 0 and operation.completions == 1


def test_an_operation_that_completes_another_leaves_each_completed_once() -> None:
    purgatory = Purgatory(VirtualTime())
    state = {"ready": False}
    second = Operation(lambda: state["ready"])

    class First(Operation):
        def on_complete(self) -> None:
            super().on_complete()
            purgatory.check_and_complete("a")

    first = First(lambda: state["ready"])
    purgatory.complete_or_watch(first, ["a"], 100)
    purgatory.complete_or_watch(second, ["a"], 100)
    state["ready"] = True
    purgatory.check_and_complete("a")
    assert (first.completions, second.completions) == (1, 1)


def test_shutdown_completes_every_operation_once() -> None:
    time = VirtualTime()
    purgatory = Purgatory(time)
    operations = [Operation(lambda: False) for _ in range(3)]
    for operation in operations:
        purgatory.complete_or_watch(operation, ["a"], 100)
    assert purgatory.complete_all() == 3
    time.run_for(1_000)
    assert [operation.completions for operation in operations] == [1, 1, 1]
