"""Parse bootstrap addresses."""

from collections.abc import Iterable

from paceline.model.errors import InvalidRequestError


def parse_bootstrap(bootstrap: str | Iterable[str]) -> list[str]:
    """Return ``host:port`` addresses, in order and without duplicates, from ``"a:1,b:2"`` or a list of such strings.

    Raises:
        InvalidRequestError: there is no address, or an address has no port.
    """
    texts = [bootstrap] if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    if not addresses:
        raise InvalidRequestError("no bootstrap address; expected host:port,host:port")
    for address in addresses:
        host, separator, port = address.rpartition(":")
        if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise InvalidRequestError(f"bootstrap address {address!r} is not host:port")
    return list(dict.fromkeys(addresses))
