"""Strict parsing of the JSON in znodes: invalid data raises `MalformedZnodeError` and no other error.

Kafka's tools and people can write these nodes too, so every type and range is checked when a value is read. Unknown
keys are ignored. Source: docs/protocol/zookeeper.md#json-values.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn, TypeAlias

from paceline.coordination.errors import MalformedZnodeError

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"

MAX_ZNODE_BYTES = 16 * 1024 * 1024
"""Longer data is refused without parsing; ZooKeeper's own limit is 1 MiB unless ``jute.maxbuffer`` is raised."""

MAX_REPLICAS = 1_000
"""Maximum number of replicas of a partition; brokers refuse requests with more replicas."""

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

_SHORT = 10
"""A decimal number with fewer digits fits 32 bits."""
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,18})")


def encode_json(value: JsonValue) -> bytes:
    """Return compact JSON in ASCII."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def decode_text(path: str, data: bytes | None) -> str:
    """Return the data as text.

    Raises:
        MalformedZnodeError: null, too long, or not UTF-8.
    """
    if data is None:
        raise MalformedZnodeError(path, "the node has no data")
    if len(data) > MAX_ZNODE_BYTES:
        raise MalformedZnodeError(path, f"{len(data)} bytes, the limit is {MAX_ZNODE_BYTES}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedZnodeError(path, f"not UTF-8: {error.reason}") from None


def decode_decimal(path: str, text: str, minimum: int, maximum: int) -> int:
    """Return a decimal integer without leading zeros, blanks or a plus sign.

    Raises:
        MalformedZnodeError: not such a number, or out of range.
    """
    if not _DECIMAL.fullmatch(text):
        raise MalformedZnodeError(path, f"{text[:40]!r} is not a decimal integer")
    value = int(text)
    if not minimum <= value <= maximum:
        raise MalformedZnodeError(path, f"{value} is not within {minimum}..{maximum}")
    return value


def decode_object(path: str, data: bytes | None) -> "JsonObject":
    """Return the JSON object in a node's data.

    Raises:
        MalformedZnodeError: null, too long, not UTF-8, not JSON, nested too deep, or not an object.
    """
    text = decode_text(path, data)
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise MalformedZnodeError(path, "nested too deep") from None
    except ValueError as error:
        raise MalformedZnodeError(path, f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise MalformedZnodeError(path, f"a JSON object is expected, this is {_kind(value)}")
    return JsonObject(path, value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("number too large")
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


class JsonObject:
    """A JSON object, with the path of its node and its position in the node's data for error messages."""

    __slots__ = ("_value", "_where", "path")

    def __init__(self, path: str, value: dict[str, Any], where: str = "") -> None:
        self.path = path
        self._value = value
        self._where = where

    def __contains__(self, key: str) -> bool:
        return key in self._value

    def fail(self, key: str, reason: str) -> MalformedZnodeError:
        """Return the error for an invalid key."""
        return MalformedZnodeError(self.path, f"{self._where}{key[:80]!r}: {reason}")

    def value(self, key: str) -> JsonValue:
        """Return the value, of any type."""
        try:
            return self._value[key]  # type: ignore[no-any-return]
        except KeyError:
            raise self.fail(key, "missing") from None

    def is_absent(self, key: str) -> bool:
        """Whether the key is missing or null."""
        return self._value.get(key) is None

    def extra(self, known: frozenset[str]) -> dict[str, JsonValue]:
        """Return the keys that are not in the schema, unchanged."""
        return {key: value for key, value in self._value.items() if key not in known}

    def integer(self, key: str, minimum: int = 0, maximum: int = MAX_INT32) -> int:
        """Return an integer; true, 1.0 and "1" are not integers."""
        return self._checked_integer(key, self.value(key), minimum, maximum)

    def decimal(self, key: str, minimum: int = -1, maximum: int = MAX_INT64) -> int:
        """Return an integer that is stored as a string."""
        try:
            return decode_decimal(self.path, self.string(key), minimum, maximum)
        except MalformedZnodeError as error:
            raise self.fail(key, error.reason) from None

    def version(self, *known: int) -> int:
        """Return the schema version if it is known."""
        version = self.integer("version")
        if version not in known:
            raise self.fail("version", f"{version} is not known")
        return version

    def string(self, key: str) -> str:
        """Return a string, after checking that it can be encoded again."""
        return self._checked_string(key, self.value(key))

    def strings(self, key: str) -> tuple[str, ...]:
        """Return a list of strings."""
        return tuple(self._checked_string(key, item) for item in self._list(key))

    def string_map(self, key: str) -> dict[str, str]:
        """Return an object whose values are strings."""
        members = self.object(key)
        return {self._checked_string(key, name): members.string(name) for name in members._value}

    def integers(self, key: str, minimum: int = 0, maximum: int = MAX_INT32) -> tuple[int, ...]:
        """Return a list of integers."""
        items: list[Any] = self._list(key)
        # A failover reads a hundred thousand lists of three integers: check all integers of a list at once, and search
        # for the invalid integer only if this check fails.
        if set(map(type, items)) == {int} and minimum <= min(items) and max(items) <= maximum:
            return tuple(items)
        return tuple(self._checked_integer(key, item, minimum, maximum) for item in items)

    def broker_ids(self, key: str) -> tuple[int, ...]:
        """Return a list of distinct broker ids."""
        ids = self.integers(key, 0, MAX_INT32)
        if len(set(ids)) != len(ids):
            raise self.fail(key, "an id is listed twice")
        if len(ids) > MAX_REPLICAS:
            raise self.fail(key, f"{len(ids)} ids, at most {MAX_REPLICAS} are allowed")
        return ids

    def broker_ids_by_partition(self) -> dict[int, tuple[int, ...]]:
        """Return all members, lists of distinct broker ids by partition number, in the order of the numbers."""
        found = {}
        for key, value in self._value.items():
            if (
                type(value) is list
                and len(key) < _SHORT
                and key.isascii()
                and key.isdecimal()
                and (key[0] != "0" or key == "0")
                and set(map(type, value)) == {int}
                and min(value) >= 0
                and max(value) <= MAX_INT32
                and len(set(value)) == len(value) <= MAX_REPLICAS
            ):
                found[int(key)] = tuple(value)
            else:
                # Check again step by step, for the error message.
                try:
                    number = decode_decimal(self.path, key, 0, MAX_INT32)
                except MalformedZnodeError as error:
                    raise self.fail(key, error.reason) from None
                found[number] = self.broker_ids(key)
        return dict(sorted(found.items()))

    def object(self, key: str) -> "JsonObject":
        """Return a member that is an object."""
        value = self.value(key)
        if not isinstance(value, dict):
            raise self.fail(key, f"an object is expected, this is {_kind(value)}")
        return JsonObject(self.path, value, f"{self._where}{key[:80]}.")

    def objects(self, key: str) -> Iterator["JsonObject"]:
        """Yield the members of a list of objects."""
        for index, item in enumerate(self._list(key)):
            if not isinstance(item, dict):
                raise self.fail(key, f"a list of objects is expected, element {index} is {_kind(item)}")
            yield JsonObject(self.path, item, f"{self._where}{key[:80]}[{index}].")

    def partition_keys(self) -> Iterator[tuple[int, str]]:
        """Yield the keys as partition numbers, in the order of the numbers: as text, 10 sorts before 2."""
        numbered = []
        for key in self._value:
            try:
                numbered.append((decode_decimal(self.path, key, 0, MAX_INT32), key))
            except MalformedZnodeError as error:
                raise self.fail(key, error.reason) from None
        return iter(sorted(numbered))

    def _list(self, key: str) -> list[JsonValue]:
        value = self.value(key)
        if not isinstance(value, list):
            raise self.fail(key, f"a list is expected, this is {_kind(value)}")
        return value

    def _checked_integer(self, key: str, value: JsonValue, minimum: int, maximum: int) -> int:
        if type(value) is not int:
            raise self.fail(key, f"an integer is expected, this is {_kind(value)}")
        if not minimum <= value <= maximum:
            raise self.fail(key, f"{value} is not within {minimum}..{maximum}")
        return value

    def _checked_string(self, key: str, value: JsonValue) -> str:
        if not isinstance(value, str):
            raise self.fail(key, f"a string is expected, this is {_kind(value)}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.fail(key, "half of a surrogate pair") from None
        return value
