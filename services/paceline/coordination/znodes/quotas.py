"""Znodes of client quotas, as Kafka 2.8 writes them; docs/protocol/zookeeper.md#client-quotas.

A node may have other keys, such as the SCRAM credentials of a user: a change keeps them.
"""

import math
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

from paceline.model.quotas import BYTE_KEYS, DEFAULT, KEYS, QuotaEntity

__all__ = ["QUOTA_ROOTS", "encode_quota_value", "quota_entity", "quota_entity_path", "quotas_in"]

QUOTA_ROOTS: Final = ("/config/users", "/config/clients")


def quota_entity_path(entity: QuotaEntity) -> str:
    """Return the path below ``/config``: ``users/alice/clients/etl``; names are encoded as by Kafka's Sanitizer."""
    named = (("users", entity.user), ("clients", entity.client_id))
    return "/".join(f"{kind}/{_encoded(name)}" for kind, name in named if name is not None)


def quota_entity(path: str) -> QuotaEntity | None:
    """Return the entity of a path below ``/config``; None for topics, brokers and addresses."""
    match path.split("/"):
        case ["users", user]:
            return QuotaEntity(unquote(user))
        case ["users", user, "clients", client_id]:
            return QuotaEntity(unquote(user), unquote(client_id))
        case ["clients", client_id]:
            return QuotaEntity(None, unquote(client_id))
    return None


def quotas_in(config: Mapping[str, str]) -> tuple[dict[str, float], list[str]]:
    """Return the quotas of an entity, and its keys whose values cannot be used."""
    found, unusable = {}, []
    for key in config.keys() & set(KEYS):
        try:
            value = float(config[key])
        except ValueError:
            value = math.nan
        if math.isfinite(value) and value >= 0:
            found[key] = value
        else:
            unusable.append(key)
    return found, unusable


def encode_quota_value(key: str, value: float) -> str:
    """Return a value as Kafka writes it: a whole number of bytes, else a decimal fraction."""
    return str(int(value)) if key in BYTE_KEYS else repr(float(value))


def _encoded(name: str) -> str:
    # Java's URLEncoder, unlike Python, encodes "~"; Kafka's Sanitizer then encodes "*" and writes "%20" for a blank.
    return name if name == DEFAULT else quote(name, safe="").replace("~", "%7E")
