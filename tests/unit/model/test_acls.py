"""Decisions of access lists, from a table, and against a plain search through all rules."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.model.acls import (
    _IMPLIED_BY,
    ANY,
    CLUSTER_NAME,
    EVERYONE,
    NO_MATCH,
    NO_RULES,
    AccessRules,
    Acl,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    UnreadableResource,
    validated,
)
from paceline.model.errors import InvalidRequestError

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
ALLOW, DENY = Permission.ALLOW, Permission.DENY
HERE = "10.0.0.1"


def rules(*acls: tuple[str, PatternType, Permission, Operation, str, str]) -> AccessRules:
    """Return rules on topics: name, pattern, permission, operation, principal without ``User:``, host."""
    found: dict[ResourcePattern, tuple[AclEntry, ...]] = {}
    for name, pattern, permission, operation, who, host in acls:
        resource = ResourcePattern(TOPIC, name, pattern)
        found[resource] = (*found.get(resource, ()), AclEntry(f"User:{who}", permission, operation, host))
    return AccessRules(found)


TABLE = [
    # rules; asked operation and topic; allowed?
    ([("rides", LITERAL, ALLOW, READ, "alice", ANY)], READ, "rides", True),
    ([("rides", LITERAL, ALLOW, READ, "alice", ANY)], DESCRIBE, "rides", True),
    ([("rides", LITERAL, ALLOW, READ, "alice", ANY)], WRITE, "rides", False),
    ([("rides", LITERAL, ALLOW, READ, "alice", ANY)], READ, "rides2", False),
    ([("rides", LITERAL, ALLOW, DESCRIBE, "alice", ANY)], READ, "rides", False),
    ([("rides", LITERAL, ALLOW, READ, "bob", ANY)], READ, "rides", False),
    ([("rides", LITERAL, ALLOW, READ, "*", ANY)], READ, "rides", True),
    ([("*", LITERAL, ALLOW, READ, "alice", ANY)], READ, "rides", True),
    ([("ri", PREFIXED, ALLOW, READ, "alice", ANY)], READ, "rides", True),
    ([("ri", PREFIXED, ALLOW, READ, "alice", ANY)], READ, "ri", True),
    ([("ri", PREFIXED, ALLOW, READ, "alice", ANY)], READ, "r", False),
    ([("ri", LITERAL, ALLOW, READ, "alice", ANY)], READ, "rides", False),
    ([("rides", LITERAL, ALLOW, ALL, "alice", ANY)], WRITE, "rides", True),
    ([("rides", LITERAL, ALLOW, READ, "alice", HERE)], READ, "rides", True),
    ([("rides", LITERAL, ALLOW, READ, "alice", "10.0.0.2")], READ, "rides", False),
    ([("*", LITERAL, ALLOW, ALL, "*", ANY), ("rides", LITERAL, DENY, READ, "alice", ANY)], READ, "rides", False),
    ([("*", LITERAL, ALLOW, ALL, "*", ANY), ("rides", LITERAL, DENY, READ, "alice", ANY)], DESCRIBE, "rides", True),
    ([("*", LITERAL, ALLOW, ALL, "*", ANY), ("rides", LITERAL, DENY, DESCRIBE, "alice", ANY)], READ, "rides", True),
    ([("*", LITERAL, ALLOW, ALL, "*", ANY), ("ri", PREFIXED, DENY, ALL, "*", ANY)], READ, "rides", False),
    ([("*", LITERAL, ALLOW, ALL, "*", ANY), ("r", PREFIXED, DENY, READ, "bob", ANY)], READ, "rides", True),
    ([("*", LITERAL, ALLOW, ALL, "*", ANY), ("rides", LITERAL, DENY, READ, "alice", "10.0.0.2")], READ, "rides", True),
    ([("rides", LITERAL, ALLOW, READ, "alice", ANY), ("*", LITERAL, DENY, ALL, "*", ANY)], READ, "rides", False),
    ([], READ, "rides", False),
]  # fmt: skip


@pytest.mark.parametrize(("acls", "operation", "topic", "allowed"), TABLE)
def test_decision(acls: list[tuple[str, PatternType, Permission, Operation, str, str]], operation: Operation,
                  topic: str, allowed: bool) -> None:  # fmt: skip
    verdict = rules(*acls).decide("User:alice", HERE, operation, TOPIC, topic)
    assert verdict.allowed is allowed
    assert verdict.rule


def test_the_verdict_names_the_rule_that_decided() -> None:
    found = rules(("ri", PREFIXED, ALLOW, READ, "alice", ANY), ("rides", LITERAL, DENY, READ, "alice", HERE))
    verdict = found.decide("User:alice", HERE, READ, TOPIC, "rides")
    assert verdict.rule == f"Deny User:alice Read on Topic:LITERAL:rides from {HERE}"
    assert found.decide("User:alice", "::1", READ, TOPIC, "rides").rule.startswith("Allow User:alice Read on Topic:PRE")


def test_without_rules_on_a_resource_the_setting_decides() -> None:
    found = rules(("rides", LITERAL, ALLOW, READ, "bob", ANY))
    assert found.decide("User:alice", HERE, READ, TOPIC, "trips", allow_without_rules=True) == NO_RULES
    assert found.decide("User:alice", HERE, READ, TOPIC, "rides", allow_without_rules=True) == NO_MATCH
    assert found.decide("User:alice", HERE, READ, GROUP, "rides", allow_without_rules=False) == NO_MATCH


@pytest.mark.parametrize(("name", "pattern"), [("rides", LITERAL), ("r", PREFIXED), ("*", LITERAL)])
def test_a_resource_that_cannot_be_parsed_refuses_what_another_rule_allows(name: str, pattern: PatternType) -> None:
    good = rules(("rides", LITERAL, ALLOW, READ, "alice", ANY), ("ride", PREFIXED, ALLOW, READ, "alice", ANY))
    broken = good.changed({ResourcePattern(TOPIC, name, pattern): UnreadableResource("not JSON")})
    assert good.decide("User:alice", HERE, READ, TOPIC, "rides").allowed
    assert not broken.decide("User:alice", HERE, READ, TOPIC, "rides", allow_without_rules=True).allowed
    assert not broken.decide("User:alice", HERE, READ, GROUP, "rides").allowed


def test_some_topic_is_enough_to_write_without_a_name() -> None:
    one = rules(("ri", PREFIXED, ALLOW, WRITE, "alice", ANY))
    assert one.decide_any("User:alice", HERE, WRITE, TOPIC).allowed
    assert not one.decide_any("User:bob", HERE, WRITE, TOPIC).allowed
    assert not one.decide_any("User:alice", HERE, READ, TOPIC).allowed
    denied = one.changed({ResourcePattern(TOPIC, ANY): (AclEntry(EVERYONE, DENY, WRITE),)})
    assert not denied.decide_any("User:alice", HERE, WRITE, TOPIC).allowed


def test_a_change_replaces_the_entries_of_its_resources_only() -> None:
    found = rules(("a", PREFIXED, ALLOW, READ, "alice", ANY), ("b", PREFIXED, ALLOW, READ, "alice", ANY))
    after = found.changed({ResourcePattern(TOPIC, "a", PREFIXED): ()})
    assert [str(acl.resource) for acl in after.acls()] == ["Topic:PREFIXED:b"]
    assert not after.decide("User:alice", HERE, READ, TOPIC, "ab").allowed
    assert found.decide("User:alice", HERE, READ, TOPIC, "ab").allowed, "the value before is unchanged"


NAMES = st.text("ab", min_size=1, max_size=5)


@given(
    st.lists(
        st.tuples(
            NAMES | st.just(ANY), st.sampled_from(PatternType), st.sampled_from(Permission),
            st.sampled_from((READ, WRITE, DESCRIBE, ALL)), st.sampled_from(("alice", "bob", "*")),
            st.sampled_from((ANY, HERE, "10.0.0.2")),
        ).filter(lambda acl: acl[0] != ANY or acl[1] is LITERAL),
        max_size=12,
    ),
    NAMES, st.sampled_from((READ, WRITE, DESCRIBE)), st.booleans(),
)  # fmt: skip
def test_the_index_decides_as_a_search_through_all_rules(
    acls: list[tuple[str, PatternType, Permission, Operation, str, str]], topic: str, operation: Operation, lax: bool
) -> None:
    on_topic = [
        acl for acl in acls
        if (acl[1] is LITERAL and acl[0] in (topic, ANY)) or (acl[1] is PREFIXED and topic.startswith(acl[0]))
    ]  # fmt: skip
    mine = [acl for acl in on_topic if acl[4] in ("alice", "*") and acl[5] in (ANY, HERE)]
    denied = any(acl[2] is DENY and acl[3] in (operation, ALL) for acl in mine)
    allowed = any(acl[2] is ALLOW and acl[3] in _IMPLIED_BY[operation] for acl in mine)
    expected = not denied and (allowed or (lax and not on_topic))
    assert rules(*acls).decide("User:alice", HERE, operation, TOPIC, topic, lax).allowed is expected


def test_ten_thousand_nested_prefixes_are_searched_by_their_chain() -> None:
    """The chain of prefixes of a name is short, however many prefixes there are."""
    rng = random.Random(1)
    names = {"".join(rng.choices("abcdef", k=rng.randint(3, 9))) for _ in range(10_000)}
    found = rules(*((name, PREFIXED, ALLOW, READ, "alice", ANY) for name in sorted(names)))
    for name in rng.sample(sorted(names), 200):
        assert found.decide("User:alice", HERE, READ, TOPIC, f"{name}-x").allowed
        assert not found.decide("User:alice", HERE, READ, TOPIC, f"x{name}").allowed


BAD = [
    ((TOPIC, "", PREFIXED), ("User:a", ALLOW, READ, ANY), "1 to 249 characters"),
    ((TOPIC, "a/b", LITERAL), ("User:a", ALLOW, READ, ANY), "'/'"),
    ((TOPIC, "..", LITERAL), ("User:a", ALLOW, READ, ANY), "'..'"),
    ((TOPIC, "a\nb", LITERAL), ("User:a", ALLOW, READ, ANY), "control characters"),
    ((TOPIC, "a" * 250, LITERAL), ("User:a", ALLOW, READ, ANY), "249"),
    ((TOPIC, "*", PREFIXED), ("User:a", ALLOW, READ, ANY), "literal name '*'"),
    ((ResourceType.CLUSTER, "mine", LITERAL), ("User:a", ALLOW, ALL, ANY), CLUSTER_NAME),
    ((GROUP, "g", LITERAL), ("User:a", ALLOW, WRITE, ANY), "not an operation on Group"),
    ((TOPIC, "t", LITERAL), ("alice", ALLOW, READ, ANY), "not User:name"),
    ((TOPIC, "t", LITERAL), ("User:", ALLOW, READ, ANY), "not User:name"),
    ((TOPIC, "t", LITERAL), ("User:a,b", ALLOW, READ, ANY), "comma"),
    ((TOPIC, "t", LITERAL), ("User:a", ALLOW, READ, "example.com"), "neither an address"),
    ((TOPIC, "t", LITERAL), ("User:a", ALLOW, READ, ""), "neither an address"),
]  # fmt: skip


@pytest.mark.parametrize(("resource", "entry", "words"), BAD)
def test_a_rule_that_can_never_apply_is_refused(
    resource: tuple[ResourceType, str, PatternType], entry: tuple[str, Permission, Operation, str], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words.replace("(", r"\(")):
        validated(Acl(ResourcePattern(*resource), AclEntry(*entry)))


def test_names_may_have_unicode_and_a_literal_star_and_addresses_get_their_usual_form() -> None:
    for name in ("straße", "*", "a*b", "用户"):
        assert validated(Acl(ResourcePattern(TOPIC, name), AclEntry("User:a", ALLOW, READ))).resource.name == name
    acl = validated(Acl(ResourcePattern(TOPIC, "t"), AclEntry("User:a", ALLOW, READ, "0:0:0:0:0:0:0:1")))
    assert acl.entry.host == "::1"
