"""Tokens of Pull: which member of which group has leased a batch to a caller, signed so that any gateway can commit it.

A token is the id of the key (4 bytes), an HMAC-SHA256 (32 bytes) and the lease as JSON. A gateway signs with the first
key of the file and accepts all of them: to change the key, add the new key as the last line on every gateway, then move
it to the first line, then remove the old key when its tokens have expired.
"""

import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from paceline.gateway.values import Refusal
from paceline.model.identifiers import TopicPartition

MIN_KEY_BYTES: Final = 32
_ID_BYTES: Final = 4
_MAC_BYTES: Final = 32
_MAX_TOKEN_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True)
class Lease:
    """A batch that a caller of Pull has until ``deadline_ms``, in milliseconds since the Unix epoch."""

    principal: str
    group: str
    member: str
    generation: int
    topic: str
    partition: int
    position: int
    """Position to commit."""
    deadline_ms: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class KeysError(ValueError):
    """The text of a key file is not valid; the message has the reason but no key."""


class TokenKeys:
    """Signs and checks tokens; the first key signs."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {hashlib.sha256(key).digest()[:_ID_BYTES]: key for key in keys}
        self._first = next(iter(self._keys))

    @classmethod
    def parse(cls, text: str) -> "TokenKeys":
        """Return the keys of a file: one per line, at least 32 bytes as hex digits; ``#`` begins a comment.

        Raises:
            KeysError: a line is not a key, or there is none.
        """
        keys = []
        for number, line in enumerate(text.splitlines(), 1):
            word = line.partition("#")[0].strip()
            if not word:
                continue
            try:
                key = binascii.unhexlify(word)
            except (binascii.Error, ValueError):
                raise KeysError(f"line {number} is not hex digits") from None
            if len(key) < MIN_KEY_BYTES:
                raise KeysError(f"line {number} has {len(key)} bytes, a key has at least {MIN_KEY_BYTES}")
            keys.append(key)
        if not keys:
            raise KeysError("there is no key")
        return cls(keys)

    def sign(self, lease: Lease) -> bytes:
        """Return the token of a lease."""
        payload = json.dumps(asdict(lease), separators=(",", ":")).encode()
        return self._first + _mac(self._keys[self._first], payload) + payload

    def read(self, token: bytes, principal: str, now_ms: int) -> Lease | Refusal:
        """Return the lease of a token, or why it is refused."""
        key = self._keys.get(token[:_ID_BYTES])
        mac, payload = token[_ID_BYTES : _ID_BYTES + _MAC_BYTES], token[_ID_BYTES + _MAC_BYTES :]
        if key is None or len(token) > _MAX_TOKEN_BYTES or not hmac.compare_digest(mac, _mac(key, payload)):
            return Refusal.INVALID_TOKEN
        lease = Lease(**json.loads(payload))
        if lease.principal != principal:
            return Refusal.INVALID_TOKEN
        return lease if now_ms < lease.deadline_ms else Refusal.EXPIRED


def _mac(key: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, payload, "sha256")
