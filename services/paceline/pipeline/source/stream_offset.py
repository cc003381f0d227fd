"""Offsets of a streaming query, in the JSON form that Spark stores in its checkpoint.

The form is that of Spark's Kafka source plus the topic id, which distinguishes a re-created topic from the deleted
topic of the same name: ``{"rides": {"0": 23, "1": 7, "topicId": "..."}}``. Spark compares offsets as text, so topics
and partitions are sorted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.model.identifiers import TopicPartition
from paceline.pipeline.errors import InvalidOptionError
from paceline.pipeline.source.offset_specs import TOPIC_ID_KEY


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset to read of every partition."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]

    def to_json(self) -> dict[str, dict[str, int | str]]:
        """Return the sorted JSON form for Spark."""
        found: dict[str, dict[str, int | str]] = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            found.setdefault(topic, {})[str(partition)] = offset
        for topic, partitions in found.items():
            partitions[TOPIC_ID_KEY] = self.topic_ids.get(topic, "")
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Mapping[str, Any]]) -> "StreamOffset":
        """Parse the JSON form in Spark's checkpoint.

        Raises:
            InvalidOptionError: the checkpoint does not hold offsets of the paceline source.
        """
        offsets: dict[TopicPartition, int] = {}
        topic_ids: dict[str, str] = {}
        try:
            for topic, partitions in value.items():
                for key, each in partitions.items():
                    if key == TOPIC_ID_KEY:
                        topic_ids[topic] = str(each)
                    else:
                        offsets[TopicPartition(topic, int(key))] = int(each)
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidOptionError(f"the checkpoint holds no offsets of the paceline source: {value!r}") from error
        return cls(offsets, topic_ids)
