"""Addresses of processes in gRPC's format."""


def address_of(host: str, port: int) -> str:
    """Return ``host:port``; an IPv6 host gets brackets, because gRPC reads ``::1:9092`` as a host without a port."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def is_address(text: str) -> bool:
    """Return whether the text is ``host:port`` with a port from 1 to 65535, an IPv6 host in brackets."""
    host, _, port = text.rpartition(":")
    has_host = host.startswith("[") and host.endswith("]") if ":" in host else bool(host)
    return has_host and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536
