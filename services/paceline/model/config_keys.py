"""What is known of a configuration key besides its value."""

from dataclasses import dataclass
from enum import Enum


class ConfigType(Enum):
    """How the text of a value is to be read; the names are those of the protos."""

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
    """Value in effect when the key is set nowhere."""
    documentation: str
