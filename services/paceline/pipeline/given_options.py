"""Options as passed by Spark, under their documented names, with a parser for each type of value.

Names are case-insensitive, and the prefix ``kafka.`` is an alias of ``paceline.``. The error for an unknown name
suggests the most similar name, the error for a refused name says what to use instead. Other settings of Kafka's clients
have no meaning here; `warn_of_ignored` lists them.
"""

import difflib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from paceline.model.addresses import is_address
from paceline.model.errors import InvalidRequestError, InvalidTopicError
from paceline.model.identifiers import validate_topic_name
from paceline.model.tls import TlsFiles
from paceline.pipeline.errors import InvalidOptionError
from paceline.rpc.security.client_tls import files_in_environment, tls_files

LOG: Final = logging.getLogger(__name__)
MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1

_CERTIFICATES = "clients authenticate with certificates: paceline.ssl.ca.file, .certificate.file and .key.file"
_NO_TABLE = (
    "CREATE TABLE is refused: Spark does not pass a table's options when it reads the table; use CREATE TEMPORARY VIEW"
)
_REFUSED_PREFIXES: Final = ("paceline.security.", "paceline.ssl.", "paceline.sasl.")

_DURATION = re.compile(r"(\d{1,12})\s*(ms|s|m|min|h|d)?")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class GivenOptions:
    """The given options, by canonical name."""

    def __init__(self, options: Mapping[str, str], known: Sequence[str], refused: Mapping[str, str]) -> None:
        """Check the names.

        Args:
            options: options as passed by Spark.
            known: every supported name, as documented.
            refused: advice by lower-case name, for names that are recognised and refused.

        Raises:
            InvalidOptionError: a name is unknown or refused, or given twice with different values.
        """
        self._values: dict[str, str] = {}
        if "provider" in {given.lower() for given in options}:
            # For CREATE TABLE, Spark passes the table's properties, which always include "provider". When it reads the
            # table, it passes none of the table's options.
            raise InvalidOptionError(_NO_TABLE)
        for given, value in options.items():
            if is_ignored(given, value, known, refused):
                continue
            name = _canonical_name(given, known, refused)
            if name in self._values and self._values[name] != value:
                raise InvalidOptionError(f"{name} is given twice with different values, once as {given}")
            self._values[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def flag(self, name: str, default: bool) -> bool:
        text = self._values.get(name)
        if text is None:
            return default
        if text.strip().lower() not in {"true", "false"}:
            raise InvalidOptionError(f"{name} must be true or false, not {text!r}")
        return text.strip().lower() == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return the given choice in lower case, the first choice by default."""
        text = self._values.get(name, choices[0]).strip().lower()
        if text not in choices:
            raise InvalidOptionError(f"{name} must be one of {', '.join(choices)}, not {self._values[name]!r}")
        return text

    def count(self, name: str, largest: int = MAX_INT32) -> int | None:
        """Return a number of at least 0, None when not given."""
        return None if name not in self._values else self._integer(name, 0, largest)

    def number(self, name: str, largest: int) -> int | None:
        """Return a positive number, None when not given."""
        return None if name not in self._values else self._integer(name, 1, largest)

    def _integer(self, name: str, smallest: int, largest: int) -> int:
        text = self._values[name]
        try:
            number = int(text.strip())
        except ValueError:
            raise InvalidOptionError(f"{name} must be a whole number, not {text!r}") from None
        if not smallest <= number <= largest:
            raise InvalidOptionError(f"{name} must be {smallest} to {largest}, not {number}")
        return number

    def servers(self) -> tuple[str, ...]:
        text = self._values.get("paceline.bootstrap.servers", "")
        servers = tuple(part.strip() for part in text.split(",") if part.strip())
        if not servers:
            raise InvalidOptionError("paceline.bootstrap.servers must be given: host:port, comma separated")
        for server in servers:
            if not is_address(server):
                raise InvalidOptionError(f"paceline.bootstrap.servers: {server!r} is not host:port or [IPv6 host]:port")
        return servers

    def tls(self) -> TlsFiles | None:
        """Return the certificate files, by default the files named in the driver's environment; None for plaintext."""
        given = [self._values.get(f"paceline.ssl.{name}.file", "").strip() for name in ("ca", "certificate", "key")]
        try:
            return tls_files(*given) or files_in_environment()
        except InvalidRequestError as error:
            raise InvalidOptionError(str(error)) from None

    def duration_ms(self, name: str) -> int | None:
        """Return a time like ``15m``, ``30s`` or ``500`` (milliseconds), None when not given."""
        text = self._values.get(name)
        if text is None:
            return None
        match = _DURATION.fullmatch(text.strip().lower())
        if match is None:
            raise InvalidOptionError(f"{name} must be a time like 500ms, 30s or 15m, not {text!r}")
        return int(match[1]) * _UNIT_MS[match[2] or "ms"]


def warn_of_ignored(options: Mapping[str, str], known: Sequence[str], refused: Mapping[str, str]) -> None:
    """Log one warning with the names of the given settings that have no meaning here."""
    ignored = [name for name, value in options.items() if is_ignored(name, value, known, refused)]
    if ignored:
        LOG.warning("ignoring settings of Kafka that have no meaning here: %s", ", ".join(sorted(ignored)))


def is_ignored(given: str, value: str, known: Sequence[str], refused: Mapping[str, str]) -> bool:
    """Return whether an option is a setting of Kafka's clients that is accepted without effect."""
    name = _lower_name(given)
    if not given.lower().startswith("kafka.") or name in refused:
        return False
    if name == "paceline.security.protocol" and value.strip().upper() == "PLAINTEXT":
        return True
    # A name that differs in a letter or two is a mistake; fetch.min.bytes is none, beside fetch.max.bytes.
    is_similar = difflib.get_close_matches(name, [each.lower() for each in known], n=1, cutoff=0.95)
    return not is_similar and not name.startswith(_REFUSED_PREFIXES)


def _lower_name(given: str) -> str:
    lower = given.lower()
    return "paceline." + lower.removeprefix("kafka.") if lower.startswith("kafka.") else lower


def _canonical_name(given: str, known: Sequence[str], refused: Mapping[str, str]) -> str:
    lower = _lower_name(given)
    canonical = {name.lower(): name for name in known}
    if lower in canonical:
        return canonical[lower]
    if lower in refused:
        raise InvalidOptionError(f"option {given} is refused: {refused[lower]}")
    if lower.startswith(_REFUSED_PREFIXES):
        raise InvalidOptionError(f"option {given} is refused: {_CERTIFICATES}")
    raise InvalidOptionError(f"unknown option {given!r}{nearest(lower, known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the most similar known name, or all names if no name is similar."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else f"; there are {', '.join(by_lower.values())}"


def check_topics(option: str, topics: Iterable[str]) -> None:
    """Check topic names.

    Raises:
        InvalidOptionError: a name is not valid.
    """
    for topic in topics:
        try:
            validate_topic_name(topic)
        except InvalidTopicError as error:
            raise InvalidOptionError(f"{option}: {error}") from error
