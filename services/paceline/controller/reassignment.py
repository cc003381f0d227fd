"""Where events let running reassignments go on."""

from collections.abc import Callable, Sequence

from paceline.controller.parts import ControllerParts
from paceline.model.assignment import ReplicaAssignment
from paceline.model.identifiers import TopicPartition
from paceline.runtime.flow import Flow


def resume_reassignments(parts: ControllerParts, wanted: Callable[[ReplicaAssignment], bool]) -> Flow[None]:
    return
    yield


def complete_finished_reassignments(parts: ControllerParts, changed: Sequence[TopicPartition]) -> Flow[None]:
    return
    yield
