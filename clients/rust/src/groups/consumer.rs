//! The consumer that is a member of a group.

use std::collections::{BTreeSet, HashMap};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::admin::At;
use crate::client::Client;
use crate::config::LONGEST;
use crate::consumer::{Consumer, LONGEST_POLL, Reset, Start, TopicPartition};
use crate::error::{Error, Result};
use crate::groups::background::{beat, watch_topics};
use crate::groups::config::GroupConfig;
use crate::groups::join::{Group, Joined, join};
use crate::groups::member::Member;
use crate::groups::offsets::{Commits, CommittedOffset, Offsets, fetch_committed};
use crate::record::ConsumedRecord;
use crate::v1::ErrorCode;

/// A result of [`GroupConsumer::next_event`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupEvent {
    /// Records; never empty.
    Records(Vec<ConsumedRecord>),
    /// A rebalance has ended: this member reads exactly these partitions, perhaps none.
    Assigned(Vec<TopicPartition>),
    /// A rebalance takes these partitions from this member. Their offsets can be committed until the next poll.
    Revoked(Vec<TopicPartition>),
    /// The membership was lost: other members may already own these partitions, and their offsets cannot be committed.
    Lost(Vec<TopicPartition>),
}

/// A member of a consumer group: reads the partitions that the group assigns to it, from the group's committed offsets.
///
/// Poll the consumer continuously; a background task sends heartbeats. When the consumer is dropped, the task ends, and the
/// group removes the member after the session timeout; [`GroupConsumer::close`] leaves the group at once. Dropping the future
/// of a poll loses no records: a running rebalance continues, and the next poll handles its result.
#[derive(Debug)]
pub struct GroupConsumer {
    group: Arc<Group>,
    records: Consumer,
    topics: BTreeSet<String>,
    assigned: BTreeSet<TopicPartition>,
    /// Whether the program has received `Revoked`; the next poll then gives up the partitions.
    is_giving_up: bool,
    commits: Commits,
    next_commit: Instant,
    joining: JoinSet<Result<Joined>>,
    /// Tasks that send heartbeats and check the partitions of topics.
    background: JoinSet<()>,
}

/// Marks the member as polling until it is dropped, also when the program drops the future of the poll.
struct Polling(Arc<Group>);

impl Polling {
    fn of(group: &Arc<Group>) -> Self {
        group.member(|member| member.set_polling(true, Instant::now()));
        Polling(Arc::clone(group))
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        self.0.member(|member| member.set_polling(false, Instant::now()));
    }
}

impl Client {
    /// Returns a member of a consumer group; it joins with the first poll after [`GroupConsumer::subscribe`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when a setting cannot work.
    pub fn group_consumer(&self, mut config: GroupConfig) -> Result<GroupConsumer> {
        config.check()?;
        config.auto_commit = config.auto_commit.map(|pause| pause.min(LONGEST));
        Ok(GroupConsumer {
            records: self.consumer(config.consumer.clone()).in_group(),
            group: Arc::new(Group::new(self.clone(), config)),
            topics: BTreeSet::new(),
            assigned: BTreeSet::new(),
            is_giving_up: false,
            commits: Commits::default(),
            next_commit: Instant::now(),
            joining: JoinSet::new(),
            background: JoinSet::new(),
        })
    }
}

impl GroupConsumer {
    /// Subscribes to these topics instead of the previous topics. The next poll joins the group.
    pub fn subscribe<T: Into<String>>(&mut self, topics: impl IntoIterator<Item = T>) {
        self.topics = topics.into_iter().map(Into::into).collect();
        self.group.rejoin();
    }

    /// Waits for records and returns them, or returns no records after `limit`. Takes part in rebalances meanwhile.
    ///
    /// # Errors
    ///
    /// As [`GroupConsumer::next_event`].
    pub async fn poll(&mut self, limit: Duration) -> Result<Vec<ConsumedRecord>> {
        self.poll_up_to(usize::MAX, limit).await
    }

    /// Polls for at most `max_records`; further records that were read are kept for the next poll.
    ///
    /// # Errors
    ///
    /// As [`GroupConsumer::next_event`].
    pub async fn poll_up_to(&mut self, max_records: usize, limit: Duration) -> Result<Vec<ConsumedRecord>> {
        let deadline = Instant::now() + limit.min(LONGEST_POLL);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.next_event(max_records, left).await? {
                Some(GroupEvent::Records(records)) => return Ok(records),
                Some(_) => {}
                None => return Ok(Vec::new()),
            }
        }
    }

    /// Waits for the next record. Automatic commits run only during polls, so a record is committed by the next call at the
    /// earliest.
    ///
    /// # Errors
    ///
    /// As [`GroupConsumer::next_event`].
    pub async fn next(&mut self) -> Result<ConsumedRecord> {
        loop {
            if let Some(record) = self.poll_up_to(1, LONGEST_POLL).await?.pop() {
                return Ok(record);
            }
        }
    }

    /// Waits for at most `max_records` records, or for an event of a rebalance. Returns `None` when `limit` ends first.
    ///
    /// # Errors
    ///
    /// `FENCED_INSTANCE_ID` when another process has taken over the instance id; every later poll fails, too. After the other
    /// errors the consumer can be polled again:
    ///
    /// * the error of the last attempt, when no coordinator answered within the timeout of the client;
    /// * a setting that the coordinator refuses: `INVALID_SESSION_TIMEOUT`, `INCONSISTENT_GROUP_PROTOCOL`, ...;
    /// * `OFFSET_OUT_OF_RANGE` with [`Reset::Error`], also for a partition without a committed offset;
    /// * the errors of [`Consumer::poll`].
    pub async fn next_event(&mut self, max_records: usize, limit: Duration) -> Result<Option<GroupEvent>> {
        if self.topics.is_empty() {
            return Err(Error::InvalidArgument("the consumer has no topics: call subscribe".to_owned()));
        }
        let deadline = Instant::now() + limit.min(LONGEST_POLL);
        let group = Arc::clone(&self.group);
        let _polling = Polling::of(&group);
        if self.background.is_empty() {
            self.background.spawn(beat(Arc::clone(&group)));
            self.background.spawn(watch_topics(Arc::clone(&group)));
        }
        loop {
            if let Some(failure) = group.member(|member| member.fatal()) {
                return Err(failure);
            }
            if self.joining.is_empty() && group.member(|member| member.needs_join()) {
                if let Some(event) = self.give_up_partitions().await {
                    return Ok(Some(event));
                }
                self.joining.spawn(join(Arc::clone(&group), self.topics.clone()));
            }
            let commit_at = self.commit_when_due();
            let until = commit_at.map_or(deadline, |commit_at| commit_at.min(deadline));
            let left = until.saturating_duration_since(Instant::now());
            tokio::select! {
                biased;
                Some(done) = self.joining.join_next() => return self.begin(done).map(Some),
                () = group.news.notified() => {}
                records = self.records.poll_up_to(max_records, left), if self.records.has_partitions() => {
                    let records = records?;
                    if !records.is_empty() {
                        return Ok(Some(GroupEvent::Records(records)));
                    }
                    if Instant::now() >= deadline {
                        return Ok(None);
                    }
                }
                () = sleep_until(until), if !self.records.has_partitions() => {
                    if Instant::now() >= deadline {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Commits the positions after all records that polls have returned, and waits.
    ///
    /// # Errors
    ///
    /// [`Error::CommitFailed`] when the group has rebalanced without this member; `REBALANCE_IN_PROGRESS` while the
    /// group rebalances: poll, then commit the partitions that are still assigned. Other codes after the client's timeout.
    pub async fn commit(&mut self) -> Result<()> {
        let offsets = self.consumed();
        self.commit_all(offsets).await
    }

    /// Commits offsets, and waits. Give the next offset to read: the offset of the last processed record, plus 1.
    ///
    /// # Errors
    ///
    /// As [`GroupConsumer::commit`].
    pub async fn commit_offsets<O: Into<CommittedOffset>>(
        &mut self,
        offsets: impl IntoIterator<Item = (TopicPartition, O)>,
    ) -> Result<()> {
        let offsets = offsets.into_iter().map(|(at, offset)| (at, offset.into())).collect();
        self.commit_all(offsets).await
    }

    /// Returns the committed offsets of partitions; omits partitions without a committed offset.
    ///
    /// # Errors
    ///
    /// Fails when the coordinator does not answer within the timeout of the client.
    pub async fn committed(&self, partitions: &[TopicPartition]) -> Result<HashMap<TopicPartition, CommittedOffset>> {
        fetch_committed(&self.group.coordinator, &self.group.config.group_id, partitions).await
    }

    /// Returns the partitions that this member reads, sorted.
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.assigned.iter().cloned().collect()
    }

    /// Returns the offset of the next record that a poll returns from a partition; `None` while it is not known.
    pub fn position(&self, topic: &str, partition: i32) -> Option<i64> {
        self.records.position(topic, partition)
    }

    /// Moves the position of an assigned partition to an offset, or to [`At`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when the partition is not assigned to this member.
    pub fn seek(&mut self, topic: &str, partition: i32, start: impl Into<Start>) -> Result<()> {
        if !self.assigned.contains(&(topic.to_owned(), partition)) {
            return Err(Error::InvalidArgument(format!("{topic}/{partition} is not assigned to this consumer")));
        }
        self.records.assign(topic, partition, start);
        Ok(())
    }

    /// Returns the member id that the coordinator gave; empty before the first join.
    pub fn member_id(&self) -> String {
        self.group.member(|member| member.id().to_owned())
    }

    /// Returns the group's generation of which this member is a part; `None` before the first join and after a loss of the
    /// membership.
    pub fn generation(&self) -> Option<i32> {
        self.group.member(|member| member.generation())
    }

    /// Commits if commits are automatic, waits for commits whose futures were dropped, and leaves the group. A static member
    /// does not leave, because its process may return within the session timeout.
    ///
    /// # Errors
    ///
    /// The failure of the commit or of LeaveGroup. The consumer is closed also after a failure.
    pub async fn close(mut self) -> Result<()> {
        self.joining.shutdown().await;
        let committed = self.commit_automatically().await;
        // Wait for commits whose futures the program dropped: the coordinator refuses commits of a member that has left.
        self.commits.wait().await;
        let limit = self.group.coordinator.client().request_timeout();
        let left = self.group.leave(limit.min(self.group.config.session_timeout / 2)).await;
        committed.and(left)
    }

    /// Gives up all partitions before a JoinGroup, in two calls: the first call returns `Revoked`, so that the program can
    /// commit, and the second call drops the partitions. After a lost membership, the first call drops them.
    async fn give_up_partitions(&mut self) -> Option<GroupEvent> {
        let is_lost = self.group.member(Member::take_lost);
        let owned = self.assignment();
        if is_lost || self.is_giving_up || owned.is_empty() {
            let is_known = std::mem::take(&mut self.is_giving_up);
            self.drop_partitions();
            return (is_lost && !is_known && !owned.is_empty()).then_some(GroupEvent::Lost(owned));
        }
        // A slower commit continues in its task, and the rebalance does not wait for it.
        let limit = self.group.config.session_timeout / 2;
        if let Ok(Err(failure)) = tokio::time::timeout(limit, self.commit_automatically()).await {
            tracing::warn!(group = self.group.config.group_id, error = %failure, "automatic commit failed");
        }
        self.is_giving_up = true;
        Some(GroupEvent::Revoked(owned))
    }

    fn drop_partitions(&mut self) {
        for (topic, partition) in std::mem::take(&mut self.assigned) {
            self.records.unassign(&topic, partition);
        }
    }

    /// Starts to read the partitions of a new generation.
    fn begin(&mut self, done: std::result::Result<Result<Joined>, JoinError>) -> Result<GroupEvent> {
        let Joined { partitions, mut committed, topics } = match done {
            Ok(joined) => joined?,
            Err(failure) => resume_unwind(failure.into_panic()),
        };
        if topics != self.topics {
            self.group.rejoin();
        }
        for at in &partitions {
            match (committed.remove(at), self.group.config.consumer.reset) {
                (Some(found), _) => self.records.resume(at, found.offset, found.leader_epoch),
                (None, Reset::Earliest) => self.records.assign(&at.0, at.1, At::Earliest),
                (None, Reset::Latest) => self.records.assign(&at.0, at.1, At::Latest),
                (None, Reset::Error) => {
                    self.records.fail_next_poll(at.clone(), no_offset(&self.group.config.group_id, at));
                }
            }
        }
        self.assigned = partitions.iter().cloned().collect();
        self.next_commit = Instant::now() + self.group.config.auto_commit.unwrap_or_default();
        Ok(GroupEvent::Assigned(partitions))
    }

    fn consumed(&mut self) -> Offsets {
        self.records.consumed().collect()
    }

    async fn commit_all(&mut self, offsets: Offsets) -> Result<()> {
        if offsets.is_empty() {
            return Ok(());
        }
        let operation = format!("committing offsets of group {}", self.group.config.group_id);
        let outcome = self.commits.send(&self.group, offsets).await;
        outcome.unwrap_or_else(|_| Err(Error::bad_answer(&operation, "the runtime was shut down")))
    }

    async fn commit_automatically(&mut self) -> Result<()> {
        if self.group.config.auto_commit.is_none() || self.generation().is_none() {
            return Ok(());
        }
        self.commit().await
    }

    /// Starts an automatic commit if it is due, without waiting for it. Returns the time of the next automatic commit.
    fn commit_when_due(&mut self) -> Option<Instant> {
        let pause = self.group.config.auto_commit?;
        if self.assigned.is_empty() || self.is_giving_up || self.generation().is_none() {
            return None;
        }
        let now = Instant::now();
        if now >= self.next_commit {
            self.next_commit = now + pause.max(Duration::from_millis(1));
            let offsets = self.consumed();
            if !self.commits.is_busy() && !offsets.is_empty() {
                let group_id = self.group.config.group_id.clone();
                let outcome = self.commits.send(&self.group, offsets);
                tokio::spawn(async move {
                    if let Ok(Err(failure)) = outcome.await {
                        tracing::warn!(group = group_id, error = %failure, "automatic commit failed");
                    }
                });
            }
        }
        Some(self.next_commit)
    }
}

fn no_offset(group_id: &str, (topic, partition): &TopicPartition) -> Error {
    let operation = format!("reading {topic}/{partition}");
    let message = format!("group {group_id} has committed no offset, and the reset policy is an error: call seek");
    Error::new(&operation, ErrorCode::OffsetOutOfRange, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientConfig;

    #[tokio::test]
    async fn failures_of_partitions_that_were_given_up_are_forgotten() {
        let client = Client::new(ClientConfig::new(["127.0.0.1:1"])).unwrap();
        let mut member = client.group_consumer(GroupConfig::new("g")).unwrap();
        let at = ("t".to_owned(), 0);
        member.records.assign(&at.0, at.1, 0);
        member.records.fail_next_poll(at.clone(), no_offset("g", &at));
        member.assigned.insert(at);
        member.drop_partitions();
        assert!(!member.records.has_partitions());
    }

    #[tokio::test(start_paused = true)]
    async fn close_waits_for_a_commit_whose_future_was_dropped() {
        let client = Client::new(ClientConfig::new(["127.0.0.1:1"])).unwrap();
        let mut member = client.group_consumer(GroupConfig::new("g")).unwrap();
        let (release, held) = tokio::sync::oneshot::channel::<()>();
        member.commits.last = Some(tokio::spawn(async { drop(held.await) }));
        let closing = tokio::spawn(member.close());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!closing.is_finished());
        release.send(()).unwrap();
        closing.await.unwrap().unwrap();
    }
}
