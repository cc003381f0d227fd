"""A partition has one written form; its directory keeps Kafka's."""

import re
from pathlib import Path

import paceline
import paceline_client
from paceline.log.directory_names import directory_name, parse_directory_name
from paceline.model.identifiers import TopicPartition

RIDES = TopicPartition("rides-eu", 0)


def test_messages_name_a_partition_as_the_command_line_does_and_directories_as_kafka_does() -> None:
    assert (str(RIDES), directory_name(RIDES)) == ("rides-eu/0", "rides-eu-0")
    assert parse_directory_name(directory_name(RIDES)) == RIDES


def test_no_message_builds_the_form_of_a_directory() -> None:
    by_hand = re.compile(r"""\b(topic|name|t|\[0\]|\['topic'\])\)?\}-\{[^}]*(partition|index|p|\[1\])\b""")
    found = [
        f"{path}: {line.strip()}"
        for package in (paceline, paceline_client)
        for path in Path(package.__path__[0]).rglob("*.py")
        if path.name != "directory_names.py"
        for line in path.read_text().splitlines()
        if by_hand.search(line)
    ]
    assert not found
