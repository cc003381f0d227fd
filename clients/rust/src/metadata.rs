//! What the client knows of brokers, the controller, topics and leaders. Pure: no calls, and the time is handed in.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::connections::join_address;
use crate::error::CallError;
use crate::v1;

/// The leader of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) address: String,
    pub(crate) epoch: i32,
    /// Id of the topic that the epoch belongs to.
    pub(crate) topic_id: String,
}

/// How long the number of partitions of a topic is used before a broker is asked again: a topic can get more.
const MAX_AGE: Duration = Duration::from_secs(300);

#[derive(Debug)]
struct Topic {
    id: String,
    partition_count: i32,
    /// When a broker was last asked for the topic.
    asked: Instant,
    leaders: HashMap<i32, Leader>,
}

/// What `Metadata` says about the leader of a partition.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    Known(Leader),
    NoLeader,
    /// The topic has fewer partitions: this many.
    NoPartition(i32),
    UnknownTopic,
}

#[derive(Debug, Default)]
pub(crate) struct Metadata {
    brokers: HashMap<i32, String>,
    controller: Option<String>,
    topics: HashMap<String, Topic>,
}

impl Metadata {
    pub(crate) fn set_cluster(&mut self, cluster: &v1::DescribeClusterResponse) {
        self.controller = controller_address(cluster);
        // A standby controller names the active one only.
        if !cluster.brokers.is_empty() {
            self.brokers = cluster
                .brokers
                .iter()
                .filter_map(|broker| Some((broker.id, join_address(&broker.host, broker.port)?)))
                .collect();
        }
    }

    pub(crate) fn controller(&self) -> Option<String> {
        self.controller.clone()
    }

    pub(crate) fn broker_addresses(&self) -> impl Iterator<Item = &String> {
        self.brokers.values()
    }

    /// Returns whether a broker or the controller has this address.
    pub(crate) fn knows_address(&self, address: &String) -> bool {
        self.controller.as_ref() == Some(address) || self.brokers.values().any(|broker| broker == address)
    }

    pub(crate) fn set_topic(&mut self, description: &v1::TopicDescription, now: Instant) {
        let mut topic = Topic {
            id: description.topic_id.clone(),
            partition_count: i32::try_from(description.partitions.len()).unwrap_or(i32::MAX),
            asked: now,
            leaders: HashMap::new(),
        };
        for partition in &description.partitions {
            if let Some(address) = partition.leader.and_then(|leader| self.brokers.get(&leader)) {
                let leader =
                    Leader { address: address.clone(), epoch: partition.leader_epoch, topic_id: topic.id.clone() };
                topic.leaders.insert(partition.partition, leader);
            }
        }
        if let Some(before) = self.topics.remove(&description.name).filter(|before| before.id == topic.id) {
            // The answering process may be behind: it takes no partitions away, and an earlier leader does not replace a later
            // one. A topic never gets fewer partitions.
            topic.partition_count = topic.partition_count.max(before.partition_count);
            for (partition, leader) in before.leaders {
                if topic.leaders.get(&partition).is_some_and(|now| now.epoch < leader.epoch) {
                    topic.leaders.insert(partition, leader);
                }
            }
        }
        self.topics.insert(description.name.clone(), topic);
    }

    /// Returns the number of partitions of a topic, nothing while it has none.
    pub(crate) fn partition_count(&self, topic: &str) -> Option<i32> {
        self.topics.get(topic).map(|topic| topic.partition_count).filter(|count| *count > 0)
    }

    /// Raises the number of partitions of the topic with this id to `count`: a topic never loses partitions.
    pub(crate) fn add_partitions(&mut self, topic: &str, id: &str, count: i32) {
        if let Some(topic) = self.topics.get_mut(topic).filter(|topic| topic.id == id) {
            topic.partition_count = topic.partition_count.max(count);
        }
    }

    /// Returns the number of partitions of the topic with this id, nothing while it is not known.
    pub(crate) fn count_of(&self, topic: &str, id: &str) -> Option<i32> {
        self.topics.get(topic).filter(|topic| topic.id == id).map(|topic| topic.partition_count)
    }

    /// Returns whether it is time to ask for the partitions of a topic again: true for one caller, the others use the known
    /// number meanwhile.
    pub(crate) fn is_due(&mut self, topic: &str, now: Instant) -> bool {
        let Some(topic) = self.topics.get_mut(topic) else { return false };
        let is_due = now.saturating_duration_since(topic.asked) > MAX_AGE;
        if is_due {
            topic.asked = now;
        }
        is_due
    }

    pub(crate) fn leader(&self, topic: &str, partition: i32) -> Lookup {
        match self.topics.get(topic) {
            None => Lookup::UnknownTopic,
            Some(topic) if !(0..topic.partition_count).contains(&partition) => {
                Lookup::NoPartition(topic.partition_count)
            }
            Some(topic) => topic.leaders.get(&partition).cloned().map_or(Lookup::NoLeader, Lookup::Known),
        }
    }

    /// Follows the hint of a failure, or forgets the leader that failed, so that the next attempt asks again.
    pub(crate) fn learn_from(&mut self, failure: &CallError, name: &str, partition: i32) {
        if !failure.refresh {
            return;
        }
        let Some(topic) = self.topics.get_mut(name) else { return };
        let known = topic.leaders.remove(&partition);
        let Some(hint) = &failure.leader else { return };
        let same_topic = hint.topic_id.is_empty() || hint.topic_id == topic.id;
        // A hint with a lower epoch comes from a broker that is behind.
        let newer = known.is_none_or(|known| hint.leader_epoch >= known.epoch);
        if let Some(address) = join_address(&hint.host, hint.port).filter(|_| same_topic && newer) {
            let leader = Leader { address, epoch: hint.leader_epoch, topic_id: topic.id.clone() };
            topic.leaders.insert(partition, leader);
        }
    }
}

pub(crate) fn controller_address(cluster: &v1::DescribeClusterResponse) -> Option<String> {
    join_address(&cluster.controller_host, cluster.controller_port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::v1::{ErrorCode, LeaderHint, PartitionError};

    fn metadata() -> Metadata {
        let mut metadata = Metadata::default();
        let broker = |id: i32| v1::BrokerInfo { id, host: "h".to_owned(), port: 9000 + id, ..Default::default() };
        metadata.set_cluster(&v1::DescribeClusterResponse {
            brokers: vec![broker(1), broker(2)],
            controller_host: "c".to_owned(),
            controller_port: 9082,
            ..Default::default()
        });
        metadata
    }

    fn described(id: &str, leader: Option<i32>, epoch: i32) -> v1::TopicDescription {
        let partition = v1::PartitionDescription { leader, leader_epoch: epoch, ..Default::default() };
        v1::TopicDescription {
            name: "t".to_owned(),
            topic_id: id.to_owned(),
            partitions: vec![partition],
            ..Default::default()
        }
    }

    fn known(address: &str, epoch: i32) -> Lookup {
        Lookup::Known(Leader { address: address.to_owned(), epoch, topic_id: "id".to_owned() })
    }

    fn refused(hint: Option<LeaderHint>) -> Error {
        let code = ErrorCode::NotLeaderOrFollower.into();
        Error::of_partition("x", PartitionError { code, current_leader: hint, ..Default::default() })
    }

    fn hint(leader_epoch: i32, topic_id: &str) -> Option<LeaderHint> {
        Some(LeaderHint { leader_id: 2, leader_epoch, host: "h".to_owned(), port: 9002, topic_id: topic_id.to_owned() })
    }

    #[test]
    fn an_answer_with_a_lower_epoch_does_not_replace_the_leader() {
        let mut metadata = metadata();
        metadata.set_topic(&described("id", Some(1), 5), Instant::now());
        metadata.set_topic(&described("id", Some(2), 4), Instant::now());
        assert_eq!(metadata.leader("t", 0), known("h:9001", 5));
        metadata.set_topic(&described("id", Some(2), 6), Instant::now());
        assert_eq!(metadata.leader("t", 0), known("h:9002", 6));
    }

    #[test]
    fn an_answer_with_fewer_partitions_takes_none_away() {
        let mut metadata = metadata();
        let mut later = described("id", Some(1), 5);
        later.partitions.push(v1::PartitionDescription { partition: 1, ..Default::default() });
        metadata.set_topic(&later, Instant::now());
        metadata.set_topic(&described("id", Some(1), 5), Instant::now());
        assert_eq!(metadata.partition_count("t"), Some(2));
        metadata.set_topic(&described("another", Some(1), 0), Instant::now());
        assert_eq!(metadata.partition_count("t"), Some(1));
    }

    #[test]
    fn partitions_are_added_to_the_topic_with_their_id() {
        let mut metadata = metadata();
        metadata.set_topic(&described("id", Some(1), 5), Instant::now());
        metadata.add_partitions("t", "id", 3);
        metadata.add_partitions("t", "id", 2);
        metadata.add_partitions("t", "other", 9);
        metadata.add_partitions("unknown", "id", 9);
        assert_eq!((metadata.partition_count("t"), metadata.partition_count("unknown")), (Some(3), None));
    }

    #[test]
    fn a_topic_without_partitions_has_no_number_of_them() {
        let mut metadata = metadata();
        metadata.set_topic(&v1::TopicDescription { name: "t".to_owned(), ..Default::default() }, Instant::now());
        assert_eq!(metadata.partition_count("t"), None);
    }

    #[test]
    fn the_number_of_partitions_is_asked_for_again_by_one_caller_when_it_is_old() {
        let mut metadata = metadata();
        let begin = Instant::now();
        assert!(!metadata.is_due("t", begin));
        metadata.set_topic(&described("id", Some(1), 5), begin);
        let late = begin + MAX_AGE + Duration::from_secs(1);
        let found = [begin + MAX_AGE, late, late].map(|now| metadata.is_due("t", now));
        assert_eq!(found, [false, true, false]);
    }

    #[test]
    fn another_topic_of_the_same_name_begins_with_its_own_epochs() {
        let mut metadata = metadata();
        metadata.set_topic(&described("old", Some(1), 50), Instant::now());
        metadata.set_topic(&described("id", Some(2), 0), Instant::now());
        assert_eq!(metadata.leader("t", 0), known("h:9002", 0));
    }

    #[test]
    fn a_hint_is_followed_unless_it_is_older_or_about_another_topic() {
        for (hint, expected) in [
            (hint(6, "id"), known("h:9002", 6)),
            (hint(5, ""), known("h:9002", 5)),
            (hint(4, "id"), Lookup::NoLeader),
            (hint(9, "other"), Lookup::NoLeader),
            (None, Lookup::NoLeader),
        ] {
            let mut metadata = metadata();
            metadata.set_topic(&described("id", Some(1), 5), Instant::now());
            metadata.learn_from(refused(hint.clone()).call().unwrap(), "t", 0);
            assert_eq!(metadata.leader("t", 0), expected, "{hint:?}");
        }
    }

    #[test]
    fn partitions_without_a_leader_and_partitions_that_do_not_exist_differ() {
        let mut metadata = metadata();
        assert_eq!(metadata.leader("t", 0), Lookup::UnknownTopic);
        metadata.set_topic(&described("id", None, 5), Instant::now());
        assert_eq!(metadata.leader("t", 0), Lookup::NoLeader);
        assert_eq!(metadata.leader("t", 1), Lookup::NoPartition(1));
        assert_eq!(metadata.leader("t", -1), Lookup::NoPartition(1));
    }

    #[test]
    fn the_answer_of_a_standby_controller_keeps_the_brokers() {
        let mut metadata = metadata();
        metadata.set_cluster(&v1::DescribeClusterResponse::default());
        assert_eq!(metadata.broker_addresses().count(), 2);
        assert_eq!(metadata.controller(), None);
    }
}
