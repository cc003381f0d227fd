"""Metadata of a configuration key: type, default, description."""

from dataclasses import dataclass
from enum import Enum


class ConfigType(Enum):
    """Type of a value, which is stored as text; the names are those of the protos."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key."""

    key: str
    type: ConfigType
    default: str
    """Default value, which applies when the key is not set."""
    documentation: str
