import itertools
import random
from collections import Counter

import pytest
from aiokafka.partitioner import murmur2 as reference_murmur2
from hypothesis import given
from hypothesis import strategies as st

from paceline_client.partitioner import StickyPartitioner, key_hash, murmur2, partition_for_key


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_equals_the_vectors_of_kafkas_own_test(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected


@pytest.mark.parametrize(
    ("key", "partition"), [(b"", 681), (b"a", 524), (b"ab", 434), (b"abc", 107), (b"123456789", 566), (b"\x00 ", 742)]
)
def test_keys_go_to_the_partition_of_a_thousand_that_aiokafka_tests(key: bytes, partition: int) -> None:
    assert partition_for_key(key, 1000) == partition


@given(st.binary(max_size=600))
def test_murmur2_equals_another_implementation_for_any_bytes(data: bytes) -> None:
    assert murmur2(data) & 0xFFFFFFFF == reference_murmur2(data)
    assert key_hash(data) == reference_murmur2(data) & 0x7FFFFFFF


def test_sticky_changes_the_partition_at_every_choice_and_uses_all() -> None:
    sticky = StickyPartitioner(random.Random(7))
    chosen = [sticky.choose([0, 1, 2, 3], 4) for _ in range(400)]
    assert all(before != after for before, after in itertools.pairwise(chosen))
    assert set(Counter(chosen)) == {0, 1, 2, 3}
    assert min(Counter(chosen).values()) > 50


def test_sticky_prefers_partitions_that_have_a_leader() -> None:
    sticky = StickyPartitioner(random.Random(7))
    assert {sticky.choose([2], 8) for _ in range(10)} == {2}


def test_sticky_falls_back_to_every_partition_when_none_has_a_leader() -> None:
    sticky = StickyPartitioner(random.Random(7))
    assert {sticky.choose([], 3) for _ in range(50)} == {0, 1, 2}
