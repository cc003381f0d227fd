//! Commits offsets of a group, and reads committed offsets.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::connections::{answer, request};
use crate::consumer::TopicPartition;
use crate::error::{Error, Result};
use crate::groups::coordinator::{Coordinator, Stub};
use crate::groups::join::Group;
use crate::v1::{self, ErrorCode};

/// A committed position, or a position to commit. An offset converts into this type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The next offset to read: the offset of the last record read, plus 1.
    pub offset: i64,
    /// Free text that is stored with the offset.
    pub metadata: String,
    /// Leader epoch of the last record read; None when it is not known.
    pub leader_epoch: Option<i32>,
}

impl From<i64> for CommittedOffset {
    fn from(offset: i64) -> Self {
        CommittedOffset { offset, ..CommittedOffset::default() }
    }
}

/// Offsets to commit, or committed offsets.
pub(crate) type Offsets = BTreeMap<TopicPartition, CommittedOffset>;

/// Sends commits one at a time, because concurrent calls on one connection may overtake each other.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    pub(super) last: Option<JoinHandle<()>>,
}

impl Commits {
    /// Returns whether a commit is queued or in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.last.as_ref().is_some_and(|last| !last.is_finished())
    }

    /// Waits until every commit that was sent has ended.
    pub(crate) async fn wait(&mut self) {
        if let Some(last) = self.last.take() {
            let _ = last.await;
        }
    }

    /// Commits after all earlier commits. Dropping the receiver does not cancel the commit.
    pub(crate) fn send(&mut self, group: &Arc<Group>, offsets: Offsets) -> oneshot::Receiver<Result<()>> {
        let (tell, outcome) = oneshot::channel();
        // Build the request now, with the current generation. If the partitions get other owners while an earlier commit is in
        // flight, the coordinator must refuse this commit.
        let message = commit_request(group, &offsets);
        let (previous, group) = (self.last.take(), Arc::clone(group));
        self.last = Some(tokio::spawn(async move {
            if let Some(previous) = previous {
                let _ = previous.await;
            }
            let outcome = match message {
                Ok(message) => commit(&group, message).await,
                Err(failure) => Err(failure),
            };
            let _ = tell.send(outcome);
        }));
        outcome
    }
}

/// Returns a commit request with the current member id and generation.
fn commit_request(group: &Group, offsets: &Offsets) -> Result<v1::CommitOffsetsRequest> {
    let group_id = &group.config.group_id;
    let (generation, member_id) = group.member(|member| member.for_commit(group_id))?;
    Ok(v1::CommitOffsetsRequest {
        group_id: group_id.clone(),
        generation_id: Some(generation),
        member_id,
        group_instance_id: group.config.instance_id.clone(),
        offsets: offsets.iter().map(to_commit).collect(),
    })
}

async fn commit(group: &Group, message: v1::CommitOffsetsRequest) -> Result<()> {
    let group_id = &group.config.group_id;
    let operation = format!("committing offsets of group {group_id}");
    let call = |mut stub: Stub, limit: Duration| {
        let (operation, message) = (operation.clone(), message.clone());
        async move {
            let found = answer(&operation, limit, stub.commit_offsets(request(message, limit))).await?;
            check(&operation, found)
        }
    };
    group.coordinator.repeat(call).await.map_err(|failure| match failure.code() {
        Some(ErrorCode::UnknownMemberId | ErrorCode::IllegalGeneration) => {
            let definite = failure.is_definite();
            Error::CommitFailed { group_id: group_id.clone(), cause: failure.to_string(), definite }
        }
        _ => failure,
    })
}

fn to_commit(((topic, partition), committed): (&TopicPartition, &CommittedOffset)) -> v1::OffsetToCommit {
    v1::OffsetToCommit {
        topic: topic.clone(),
        partition: *partition,
        offset: committed.offset,
        leader_epoch: committed.leader_epoch,
        metadata: committed.metadata.clone(),
    }
}

/// Returns the error of the first partition that was refused.
fn check(operation: &str, found: v1::CommitOffsetsResponse) -> Result<()> {
    for v1::CommitOffsetResult { topic, partition, error } in found.partitions {
        if let Some(error) = error {
            return Err(Error::of_partition(&format!("{operation}, {topic}/{partition}"), error));
        }
    }
    Ok(())
}

/// Returns the committed offsets; omits partitions without a committed offset.
pub(crate) async fn fetch_committed(
    coordinator: &Coordinator,
    group_id: &str,
    partitions: &[TopicPartition],
) -> Result<HashMap<TopicPartition, CommittedOffset>> {
    if partitions.is_empty() {
        return Ok(HashMap::new());
    }
    let operation = format!("reading committed offsets of group {group_id}");
    let message = v1::FetchOffsetsRequest { group_id: group_id.to_owned(), partitions: to_v1(partitions) };
    let call = |mut stub: Stub, limit: Duration| {
        let (operation, message) = (operation.clone(), message.clone());
        async move { answer(&operation, limit, stub.fetch_offsets(request(message, limit))).await }
    };
    let found = coordinator.repeat(call).await?.partitions;
    Ok(found.into_iter().filter_map(committed).collect())
}

fn committed(found: v1::CommittedOffset) -> Option<(TopicPartition, CommittedOffset)> {
    let v1::CommittedOffset { topic, partition, offset, leader_epoch, metadata, .. } = found;
    Some(((topic, partition), CommittedOffset { offset: offset?, metadata, leader_epoch }))
}

pub(crate) fn to_v1(partitions: &[TopicPartition]) -> Vec<v1::TopicPartitions> {
    let mut by_topic: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for (topic, partition) in partitions {
        by_topic.entry(topic).or_default().push(*partition);
    }
    let topics = by_topic.into_iter();
    topics.map(|(topic, partitions)| v1::TopicPartitions { topic: topic.to_owned(), partitions }).collect()
}

pub(crate) fn from_v1(topics: Vec<v1::TopicPartitions>) -> Vec<TopicPartition> {
    let of_topic = |v1::TopicPartitions { topic, partitions }| {
        partitions.into_iter().map(move |partition| (topic.clone(), partition)).collect::<Vec<_>>()
    };
    topics.into_iter().flat_map(of_topic).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, ClientConfig, GroupConfig};

    #[tokio::test]
    async fn a_commit_belongs_to_the_generation_in_which_it_was_called() {
        let config = ClientConfig::new(["127.0.0.1:1"]).timeout(Duration::from_millis(300));
        let group = Arc::new(Group::new(Client::new(config).unwrap(), GroupConfig::new("g")));
        let (release, held) = oneshot::channel::<()>();
        let mut commits = Commits { last: Some(tokio::spawn(async { drop(held.await) })) };
        let outcome = commits.send(&group, Offsets::from([(("t".to_owned(), 0), 5.into())]));
        group.member(|member| member.joined("m", 4));
        release.send(()).unwrap();
        let failure = outcome.await.unwrap().unwrap_err();
        assert!(matches!(failure, Error::CommitFailed { .. }), "it was sent in a later generation: {failure}");
    }

    #[test]
    fn partitions_are_named_by_topic() {
        let partitions = [("b".to_owned(), 1), ("a".to_owned(), 0), ("b".to_owned(), 0)];
        let named = to_v1(&partitions);
        assert_eq!(named.len(), 2);
        assert_eq!((named[1].topic.as_str(), named[1].partitions.as_slice()), ("b", [1, 0].as_slice()));
        assert_eq!(from_v1(named), [("a".to_owned(), 0), ("b".to_owned(), 1), ("b".to_owned(), 0)]);
    }

    #[test]
    fn the_first_partition_that_was_refused_is_named() {
        let result = |partition, code: Option<ErrorCode>| v1::CommitOffsetResult {
            topic: "t".to_owned(),
            partition,
            error: code.map(|code| v1::PartitionError { code: code.into(), ..Default::default() }),
        };
        let all_kept = v1::CommitOffsetsResponse { partitions: vec![result(0, None)] };
        check("committing", all_kept).unwrap();
        let refused = vec![result(0, None), result(1, Some(ErrorCode::OffsetMetadataTooLarge))];
        let failure = check("committing", v1::CommitOffsetsResponse { partitions: refused }).unwrap_err();
        assert_eq!(failure.code(), Some(ErrorCode::OffsetMetadataTooLarge));
        assert!(failure.to_string().contains("t/1"), "{failure}");
    }

    #[test]
    fn a_partition_without_a_commit_has_no_offset() {
        let found = |offset| v1::CommittedOffset { topic: "t".to_owned(), offset, ..Default::default() };
        assert_eq!(committed(found(None)), None);
        assert_eq!(committed(found(Some(0))).unwrap().1, 0.into());
    }
}
