"""The error that names every address that did not answer."""

from paceline_client.admin_connection import by_cause


def test_addresses_with_the_same_cause_share_a_sentence() -> None:
    causes = {"a:1": "connection refused", "b:2": "no certificate", "c:3": "connection refused"}
    assert by_cause(causes) == "a:1, c:3: connection refused; b:2: no certificate"
