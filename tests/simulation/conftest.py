"""Flags of the simulation tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--simulation-seeds", type=int, default=300, help="how many seeds the slice runs")
    group.addoption("--double-runs", type=int, default=12, help="how many seeds run twice for determinism")
