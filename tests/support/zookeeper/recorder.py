"""Record what a ZooKeeper client reports, for tests."""

from paceline.coordination.interface import (
    Request,
    Response,
    SessionEvent,
    SessionState,
    WatchEvent,
    ZooKeeper,
)


class Recorder:
    """A started client that records its session events and watch events, in order."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self.zookeeper = zookeeper
        self.log: list[SessionEvent | WatchEvent | list[Response]] = []
        zookeeper.start(self.log.append, self.log.append)

    @property
    def states(self) -> list[SessionState]:
        return [entry.state for entry in self.log if isinstance(entry, SessionEvent)]

    @property
    def watch_events(self) -> list[WatchEvent]:
        return [entry for entry in self.log if isinstance(entry, WatchEvent)]

    def submit(self, *requests: Request) -> list[Response]:
        """Submit and return the list that gets the responses."""
        answers: list[Response] = []

        def done(responses: list[Response]) -> None:
            answers.extend(responses)
            self.log.append(responses)

        self.zookeeper.submit(requests, done)
        return answers
