"""The fixture of `paceline.testing` on a machine without Java; test_python_guide.py has the fixture with a cluster."""

import pytest

pytest_plugins = ["pytester"]


def test_fixture_without_java_fails_with_the_command_that_installs_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    pytester.makeconftest('pytest_plugins = ["paceline.testing"]')
    pytester.makepyfile("def test_orders(cluster): pass")
    options = ("-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function")
    result = pytester.runpytest_inprocess(*options)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["the fixture cluster cannot start: java is not on the PATH*openjdk-17-jre-headless"])
    assert "Traceback" not in result.stdout.str()
