import pydoc
import re
import subprocess
import sys

import pytest

import paceline_client


@pytest.mark.parametrize("name", paceline_client.__all__)
def test_every_exported_name_exists(name: str) -> None:
    assert getattr(paceline_client, name).__name__ == name


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        paceline_client.Prodcuer  # noqa: B018


def test_describing_does_not_load_the_record_codec() -> None:
    check = "import sys; from paceline_client import Admin; sys.exit('aiokafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60, check=False).returncode == 0


def test_help_describes_every_public_class() -> None:
    text = pydoc.plain(pydoc.render_doc(paceline_client))
    described = set(re.findall(r"^    class (\w+)", text, re.MULTILINE))
    assert described == set(paceline_client.__all__)
    assert "`Producer` and `AsyncProducer` write records" in text
