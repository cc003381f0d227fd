"""Host and port as one address."""

import pytest

from paceline.model.addresses import address_of
from paceline.model.control import Endpoint


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("b1", "b1:9092"),
        ("10.0.0.1", "10.0.0.1:9092"),
        ("::1", "[::1]:9092"),
        ("fe80::1%eth0", "[fe80::1%eth0]:9092"),
        ("[::1]", "[::1]:9092"),
    ],
)
def test_an_ipv6_host_gets_brackets(host: str, address: str) -> None:
    assert address_of(host, 9092) == address
    assert Endpoint("CLIENT", host, 9092).address == address
