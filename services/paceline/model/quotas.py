"""Client quotas: how much a caller may use per second, and how long a caller above its quota has to wait.

Quotas are set for a user, a client id or a pair of both; ``<default>`` stands for every name without its own quota.
For each key the first level with a value applies:

1. user and client id          2. user, default client id       3. user
4. default user and client id  5. default user and client id    6. default user
7. client id                   8. default client id

(4: the given client id of every user; 5: both defaults.) A level with a user and a client id has an account for each
pair, the others one for each user or client id.

An account is a bucket of tokens: it fills with the quota's rate up to ``burst_s`` seconds of it. A charge may overdraw
it, so every request is answered; the pause is the time until the debt is paid. With Kafka's defaults, 11 windows of
1 s, the first pause is that of Kafka's sampled rate. Kafka uses a bucket for partitions since KIP-599, because a
sampled rate forgets a burst all at once.

Source: Kafka 2.8 ClientQuotaManager, ControllerMutationQuotaManager; KIP-13, KIP-55, KIP-124, KIP-219, KIP-599.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from paceline.model.errors import InvalidRequestError

DEFAULT: Final = "<default>"
PRODUCER: Final = "producer_byte_rate"
CONSUMER: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
MUTATION: Final = "controller_mutation_rate"
KEYS: Final = (PRODUCER, CONSUMER, REQUEST, MUTATION)
BYTE_KEYS: Final = frozenset({PRODUCER, CONSUMER})
"""Keys whose values are whole numbers."""
MAX_NAME_CHARACTERS: Final = 249
MAX_PAUSE_MS: Final = 2**31 - 1
MAX_ACCOUNTS: Final = 10_000
"""Callers choose their client ids, so the number of accounts needs a limit; the oldest is forgotten above it."""
MAX_USERS_MEASURED: Final = 1_000
"""Users with a throttle time of their own; further users share one."""
OTHER: Final = "(other)"
_LEAST_RATE: Final = 1e-9
"""Rate for a quota of 0, which Kafka's tools can set: one burst, and then a pause without end."""


class QuotaEntity(NamedTuple):
    """A user, a client id, or both; None means that it is not part of the entity."""

    user: str | None = None
    client_id: str | None = None

    def __str__(self) -> str:
        """Return ``user alice, client id etl``."""
        named = (("user", self.user), ("client id", self.client_id))
        return ", ".join(f"{kind} {name}" for kind, name in named if name is not None)


Values = Mapping[str, float]


def check_change(entity: QuotaEntity, key: str, value: float | None) -> None:
    """Raise unless the value can be set for a key of an entity; None removes it.

    Raises:
        InvalidRequestError: no name, a name that cannot be that of a znode, an unknown key, or a value that is not a
            positive number of its kind.
    """
    names = [name for name in entity if name is not None]
    if not names:
        raise InvalidRequestError("a quota needs a user, a client id, or both")
    for name in names:
        if not 0 < len(name) <= MAX_NAME_CHARACTERS or name in (".", "..") or not name.isprintable():
            raise InvalidRequestError(
                f"{name[:80]!r} cannot have a quota: a name has 1 to {MAX_NAME_CHARACTERS} printable characters"
            )
    if key not in KEYS:
        raise InvalidRequestError(f"{key[:80]!r} is not a quota; these are {', '.join(KEYS)}")
    if value is not None and not 0 < value < 2**63:  # also refuses NaN
        raise InvalidRequestError(f"{key} must be above 0, not {value:g}; access lists refuse a caller everything")
    if value is not None and key in BYTE_KEYS and value != int(value):
        raise InvalidRequestError(f"{key} must be a whole number, not {value:g}")


def levels(user: str, client_id: str) -> tuple[QuotaEntity, ...]:
    """Return the entities whose quotas may apply to a caller, in the order of their precedence."""
    return (
        QuotaEntity(user, client_id),
        QuotaEntity(user, DEFAULT),
        QuotaEntity(user),
        QuotaEntity(DEFAULT, client_id),
        QuotaEntity(DEFAULT, DEFAULT),
        QuotaEntity(DEFAULT),
        QuotaEntity(None, client_id),
        QuotaEntity(None, DEFAULT),
    )


class _Account:
    """Tokens of one user, client id or pair for one key."""

    __slots__ = ("at_ms", "rate", "tokens")

    def __init__(self, rate: float, tokens: float, now_ms: float) -> None:
        self.rate = rate
        """Tokens per ms."""
        self.tokens = tokens
        self.at_ms = now_ms


class ClientQuotas:
    """The quotas in force and the accounts of the callers; the caller of the methods passes the time."""

    def __init__(self, burst_s: float = 10.0) -> None:
        """``burst_s``: seconds of its rate that a caller may use at once after a time of rest."""
        self.values: Mapping[QuotaEntity, Values] = {}
        self.throttled_ms: dict[tuple[str, str], float] = {}
        """Sum of the pauses by user and key."""
        self._burst_ms = burst_s * 1_000
        self._keys: frozenset[str] = frozenset()
        self._accounts: dict[tuple[str, str | None, str | None], _Account] = {}
        self._account_of: dict[tuple[str, str, str], _Account | None] = {}
        """Accounts by user, client id and key of the caller."""

    def use(self, values: Mapping[QuotaEntity, Values]) -> None:
        """Apply these quotas from now on; a caller whose quota has changed begins with a full account."""
        self.values = values
        self._keys = frozenset(key for found in values.values() for key in found)
        self._account_of.clear()
        if not values:
            self._accounts.clear()

    def limits(self, key: str) -> bool:
        """Whether any caller has a quota for a key."""
        return key in self._keys

    def rate_of(self, user: str, client_id: str, key: str) -> tuple[QuotaEntity, float] | None:
        """Return the entity whose quota applies to a caller, and its value; None without a quota."""
        for entity in levels(user, client_id):
            value = self.values.get(entity, {}).get(key)
            if value is not None:
                return entity, value
        return None

    def charge(self, user: str, client_id: str, key: str, amount: float, now_ms: float) -> int:
        """Charge bytes, ms of the event loop or partitions, and return the pause in ms; 0 within the quota.

        A negative amount gives back an earlier charge.
        """
        account = self._account(user, client_id, key, now_ms)
        if account is None:
            return 0
        before = _pause_ms(account)
        account.tokens -= amount
        pause_ms = _pause_ms(account)
        if pause_ms > before:
            if len(self.throttled_ms) >= MAX_USERS_MEASURED and (user, key) not in self.throttled_ms:
                user = OTHER
            self.throttled_ms[user, key] = self.throttled_ms.get((user, key), 0.0) + pause_ms - before
        return pause_ms

    def pause_ms(self, user: str, client_id: str, key: str, now_ms: float) -> int:
        """Return the rest of the caller's pause in ms, 0 for none."""
        account = self._account(user, client_id, key, now_ms)
        return 0 if account is None else _pause_ms(account)

    def burst(self, user: str, client_id: str, key: str) -> int | None:
        """Return the most that a caller may use at once, at least 1; None without a quota."""
        found = self.rate_of(user, client_id, key) if key in self._keys else None
        return None if found is None else max(1, int(found[1] * self._burst_ms / 1_000))

    def _account(self, user: str, client_id: str, key: str, now_ms: float) -> _Account | None:
        if key not in self._keys:
            return None
        caller = (user, client_id, key)
        if caller in self._account_of:
            account = self._account_of[caller]
        else:
            if len(self._account_of) >= MAX_ACCOUNTS:
                self._account_of.clear()
            account = self._account_of[caller] = self._opened(user, client_id, key, now_ms)
        if account is not None:
            full = account.rate * self._burst_ms
            account.tokens = min(full, account.tokens + account.rate * max(0.0, now_ms - account.at_ms))
            account.at_ms = now_ms
        return account

    def _opened(self, user: str, client_id: str, key: str, now_ms: float) -> _Account | None:
        found = self.rate_of(user, client_id, key)
        if found is None:
            return None
        entity, value = found
        # A percentage of the time is tens of ms per s.
        rate = max(value, _LEAST_RATE) * (10 if key == REQUEST else 1) / 1_000
        owner = (key, user if entity.user is not None else None, client_id if entity.client_id is not None else None)
        account = self._accounts.get(owner)
        if account is None or account.rate != rate:
            if len(self._accounts) >= MAX_ACCOUNTS:
                del self._accounts[next(iter(self._accounts))]
                self._account_of.clear()
            account = self._accounts[owner] = _Account(rate, rate * self._burst_ms, now_ms)
        return account


def _pause_ms(account: _Account) -> int:
    if account.tokens >= 0:
        return 0
    return min(MAX_PAUSE_MS, int(-account.tokens / account.rate) + 1)
