"""Pauses that brokers and controllers request of a caller above its quota (``throttle_ms`` of their answers)."""


class Throttles:
    """The pause of each address; the owner calls it under its lock and passes the time."""

    def __init__(self) -> None:
        self.total_ms = 0
        """Sum of the pauses; the common part of overlapping pauses counts once."""
        self._until_ms: dict[str, int] = {}

    def note(self, address: str, throttle_ms: int, now_ms: int) -> None:
        """Pause the requests to an address, because an answer asks for it; 0 changes nothing."""
        if throttle_ms > 0:
            self.total_ms += max(0, throttle_ms - self.left_ms(address, now_ms))
            self._until_ms[address] = max(now_ms + throttle_ms, self._until_ms.get(address, 0))

    def left_ms(self, address: str, now_ms: int) -> int:
        """Return the rest of an address's pause, 0 for none."""
        if not self._until_ms:
            return 0
        left_ms = self._until_ms.get(address, 0) - now_ms
        if left_ms > 0:
            return left_ms
        self._until_ms.pop(address, None)
        return 0
