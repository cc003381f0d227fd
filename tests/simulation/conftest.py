"""Flags of the simulation tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--simulation-seeds", type=int, default=100, help="how many seeds the short slice runs")
    group.addoption("--double-runs", type=int, default=6, help="how many seeds run twice for determinism")
