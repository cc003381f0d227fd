"""Addresses of processes in gRPC's format."""


def address_of(host: str, port: int) -> str:
    """Return ``host:port``; an IPv6 host gets brackets, because gRPC reads ``::1:9092`` as a host without a port."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
