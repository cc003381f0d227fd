//! Assignors: rules that divide partitions among the members of a group, with Kafka's names. Pure: no calls, no clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::str::FromStr;

use crate::consumer::TopicPartition;
use crate::error::{Error, Result};

/// The rule by which the leader of a group assigns partitions. The members of a group must have an assignor in common; the
/// clients of all languages support these two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Assignor {
    /// Gives each member consecutive partitions of each topic. Members with the same topics read the same partition numbers
    /// of topics with equal partition counts.
    #[default]
    Range,
    /// Deals the partitions of all topics to the members in turn.
    RoundRobin,
}

const ALL: [Assignor; 2] = [Assignor::Range, Assignor::RoundRobin];

/// The part of a member's JoinGroup that assignors use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subscriber {
    pub(crate) member_id: String,
    pub(crate) instance_id: String,
    pub(crate) topics: BTreeSet<String>,
}

/// Number of partitions of each existing topic.
pub(crate) type PartitionCounts = BTreeMap<String, i32>;

/// Partitions by member id. A member without partitions has an empty list.
pub(crate) type Assignments = HashMap<String, Vec<TopicPartition>>;

impl Assignor {
    /// Returns the name in the group protocol: `range` or `roundrobin`.
    pub fn name(self) -> &'static str {
        match self {
            Assignor::Range => "range",
            Assignor::RoundRobin => "roundrobin",
        }
    }

    pub(crate) fn assign(self, members: &[Subscriber], counts: &PartitionCounts) -> Assignments {
        let mut ordered: Vec<&Subscriber> = members.iter().collect();
        // Static members first, by instance id; then dynamic members, by member id.
        ordered.sort_by_key(|member| match member.instance_id.as_str() {
            "" => (true, member.member_id.as_str()),
            instance_id => (false, instance_id),
        });
        let mut assignments: Assignments =
            members.iter().map(|member| (member.member_id.clone(), Vec::new())).collect();
        let mut give = |member: &Subscriber, topic: &str, partition| {
            assignments.entry(member.member_id.clone()).or_default().push((topic.to_owned(), partition));
        };
        match self {
            Assignor::Range => by_range(&ordered, counts, &mut give),
            Assignor::RoundRobin => by_turn(&ordered, counts, &mut give),
        }
        assignments
    }
}

fn by_range(members: &[&Subscriber], counts: &PartitionCounts, give: &mut impl FnMut(&Subscriber, &str, i32)) {
    for (topic, count) in counts {
        let takers: Vec<_> = members.iter().filter(|member| member.topics.contains(topic)).collect();
        let Ok(taker_count) = i32::try_from(takers.len()) else { continue };
        let mut begin = 0;
        for (place, taker) in (0..).zip(takers) {
            let end = begin + count / taker_count + i32::from(place < count % taker_count);
            (begin..end).for_each(|partition| give(taker, topic, partition));
            begin = end;
        }
    }
}

fn by_turn(members: &[&Subscriber], counts: &PartitionCounts, give: &mut impl FnMut(&Subscriber, &str, i32)) {
    let mut turn = members.iter().cycle();
    for (topic, count) in counts {
        if !members.iter().any(|member| member.topics.contains(topic)) {
            continue;
        }
        for partition in 0..*count {
            if let Some(taker) = turn.find(|member| member.topics.contains(topic)) {
                give(taker, topic, partition);
            }
        }
    }
}

impl FromStr for Assignor {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        ALL.into_iter().find(|assignor| assignor.name() == name).ok_or_else(|| {
            let known = ALL.map(Assignor::name).join(", ");
            Error::InvalidArgument(format!("unknown assignor {name:?}; known are {known}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(member_id: &str, instance_id: &str, topics: &[&str]) -> Subscriber {
        Subscriber {
            member_id: member_id.to_owned(),
            instance_id: instance_id.to_owned(),
            topics: topics.iter().map(|&topic| topic.to_owned()).collect(),
        }
    }

    fn assign(assignor: Assignor, members: &[Subscriber], counts: &[(&str, i32)]) -> Vec<String> {
        let counts = counts.iter().map(|(topic, count)| ((*topic).to_owned(), *count)).collect();
        let assignments: BTreeMap<_, _> = assignor.assign(members, &counts).into_iter().collect();
        let text = |partitions: Vec<TopicPartition>| {
            partitions.iter().map(|(topic, partition)| format!(" {topic}-{partition}")).collect::<String>()
        };
        assignments.into_iter().map(|(member, partitions)| format!("{member}:{}", text(partitions))).collect()
    }

    #[test]
    fn range_divides_each_topic_by_itself() {
        let members = [member("c1", "", &["t0", "t1"]), member("c0", "", &["t0", "t1"])];
        let found = assign(Assignor::Range, &members, &[("t0", 3), ("t1", 3)]);
        assert_eq!(found, ["c0: t0-0 t0-1 t1-0 t1-1", "c1: t0-2 t1-2"]);
    }

    #[test]
    fn roundrobin_deals_the_partitions_of_all_topics_in_turn() {
        let members = [member("c1", "", &["t0", "t1"]), member("c0", "", &["t0", "t1"])];
        let found = assign(Assignor::RoundRobin, &members, &[("t0", 3), ("t1", 3)]);
        assert_eq!(found, ["c0: t0-0 t0-2 t1-1", "c1: t0-1 t1-0 t1-2"]);
    }

    #[test]
    fn members_get_partitions_of_their_own_topics_only() {
        let members = [member("a", "", &["t0"]), member("b", "", &["t0", "t1"]), member("c", "", &["t2"])];
        let counts = [("t0", 2), ("t1", 2), ("other", 9)];
        assert_eq!(assign(Assignor::Range, &members, &counts), ["a: t0-0", "b: t0-1 t1-0 t1-1", "c:"]);
        assert_eq!(assign(Assignor::RoundRobin, &members, &counts), ["a: t0-0", "b: t0-1 t1-0 t1-1", "c:"]);
    }

    #[test]
    fn static_members_come_first_in_the_order_of_their_instance_ids() {
        let members = [member("a", "", &["t"]), member("y", "2", &["t"]), member("z", "1", &["t"])];
        assert_eq!(assign(Assignor::Range, &members, &[("t", 4)]), ["a: t-3", "y: t-2", "z: t-0 t-1"]);
    }

    #[test]
    fn more_members_than_partitions_leave_members_without_any() {
        let members = [member("a", "", &["t"]), member("b", "", &["t"])];
        assert_eq!(assign(Assignor::Range, &members, &[("t", 1)]), ["a: t-0", "b:"]);
        assert_eq!(assign(Assignor::RoundRobin, &members, &[]), ["a:", "b:"]);
    }

    #[test]
    fn names_are_those_of_all_languages() {
        assert_eq!("roundrobin".parse::<Assignor>().unwrap(), Assignor::RoundRobin);
        assert_eq!("range".parse::<Assignor>().unwrap().name(), "range");
        assert!("sticky".parse::<Assignor>().unwrap_err().to_string().contains("range, roundrobin"));
    }
}
