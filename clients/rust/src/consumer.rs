//! The consumer: reads assigned partitions from positions of its own.

use std::collections::{HashMap, VecDeque};
use std::panic::resume_unwind;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet, yield_now};
use tokio::time::{Instant, sleep_until};

use crate::admin::At;
use crate::client::Client;
use crate::config::LONGEST;
use crate::error::{Error, Result};
use crate::fetch::{Asked, Fetched, fetch};
use crate::groups::{CommittedOffset, shape_of};
use crate::position::{Accepted, Position};
use crate::record::ConsumedRecord;
use crate::v1::ErrorCode;

/// What happens when a position is out of range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reset {
    /// Continue at the first offset still in the log.
    #[default]
    Earliest,
    /// Continue at the end.
    Latest,
    /// Return the error `OFFSET_OUT_OF_RANGE` from the poll.
    Error,
}

/// Where reading begins. An offset can be given as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At an offset.
    Offset(i64),
    /// At a place that is looked up with the first poll.
    At(At),
}

impl From<i64> for Start {
    fn from(offset: i64) -> Self {
        Start::Offset(offset)
    }
}

impl From<At> for Start {
    fn from(at: At) -> Self {
        Start::At(at)
    }
}

/// How a consumer reads.
#[derive(Clone, Debug)]
pub struct ConsumerConfig {
    /// What happens when a position is out of range; the earliest offset by default.
    pub reset: Reset,
    /// How long a broker may hold a fetch without records; 500 ms by default.
    pub max_wait: Duration,
    /// Bounds the answer of one fetch; 1 MiB by default.
    pub max_bytes: i32,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        ConsumerConfig { reset: Reset::default(), max_wait: Duration::from_millis(500), max_bytes: 1 << 20 }
    }
}

/// A topic and the number of a partition.
pub type TopicPartition = (String, i32);

pub(crate) const LONGEST_POLL: Duration = Duration::from_secs(86_400);

/// Reads assigned partitions from positions of its own. Dropping the future of a poll loses no records.
#[derive(Debug)]
pub struct Consumer {
    client: Client,
    config: ConsumerConfig,
    positions: HashMap<TopicPartition, Position>,
    /// Counts the assignments, so that the answer of an earlier assignment is recognized.
    assignments: u64,
    /// Records that were read and not returned yet, in the order of each partition.
    buffered: VecDeque<ConsumedRecord>,
    failures: VecDeque<(TopicPartition, Error)>,
    /// Whether a group assigns the partitions: they exist.
    in_group: bool,
    tasks: JoinSet<Done>,
}

/// What a task of the consumer found. Numbers are those of assignments.
#[derive(Debug)]
enum Done {
    FoundLeader(TopicPartition, u64, Result<()>),
    FoundStart(TopicPartition, u64, Result<(i64, String)>),
    Fetched(Vec<Fetched>),
}

impl Client {
    /// Returns a consumer without partitions.
    pub fn consumer(&self, mut config: ConsumerConfig) -> Consumer {
        config.max_wait = config.max_wait.min(LONGEST);
        Consumer {
            client: self.clone(),
            config,
            positions: HashMap::new(),
            assignments: 0,
            buffered: VecDeque::new(),
            failures: VecDeque::new(),
            in_group: false,
            tasks: JoinSet::new(),
        }
    }
}

impl Consumer {
    /// Reads a partition from an offset, or from [`At`]. A partition that was assigned before continues there.
    pub fn assign(&mut self, topic: &str, partition: i32, start: impl Into<Start>) {
        self.unassign(topic, partition);
        self.assignments += 1;
        self.positions
            .insert((topic.to_owned(), partition), Position::new(self.assignments, start.into(), self.in_group));
    }

    /// Reads every partition that a topic has now.
    ///
    /// # Errors
    ///
    /// `UNKNOWN_TOPIC_OR_PARTITION` when brokers have not known the topic for 5 s; the last failure when no broker has answered
    /// within the timeout of the client.
    pub async fn assign_topic(&mut self, topic: &str, start: impl Into<Start>) -> Result<()> {
        let start = start.into();
        let mut count = self.client.partition_count(topic).await?;
        // That broker may be cut off from the cluster and not know added partitions: ask several.
        if let Ok(Some(shape)) = shape_of(&self.client, topic, self.client.request_timeout()).await {
            count = shape.count;
        }
        for partition in 0..count {
            self.assign(topic, partition, start);
        }
        Ok(())
    }

    /// Reads a partition no more.
    pub fn unassign(&mut self, topic: &str, partition: i32) {
        self.positions.remove(&(topic.to_owned(), partition));
        self.buffered.retain(|record| record.partition != partition || record.topic != topic);
        self.failures.retain(|((of_topic, index), _)| *index != partition || of_topic != topic);
    }

    /// Reads a partition from a committed offset, which may name the leader epoch of the record before it.
    pub(crate) fn resume(&mut self, at: &TopicPartition, offset: i64, leader_epoch: Option<i32>) {
        self.assign(&at.0, at.1, offset);
        if let Some(position) = self.positions.get_mut(at) {
            position.set_epoch(leader_epoch);
        }
    }

    pub(crate) fn has_partitions(&self) -> bool {
        !self.positions.is_empty() || !self.failures.is_empty()
    }

    /// Takes note that a group assigns the partitions, which exist therefore.
    #[must_use]
    pub(crate) fn in_group(mut self) -> Self {
        self.in_group = true;
        self
    }

    pub(crate) fn fail_next_poll(&mut self, at: TopicPartition, failure: Error) {
        self.failures.push_back((at, failure));
    }

    /// Returns the positions after the records that polls have returned, where they are known. A position that an answer has
    /// just shown to be out of range, or of a deleted topic, is not.
    pub(crate) fn consumed(&mut self) -> impl Iterator<Item = (TopicPartition, CommittedOffset)> {
        self.accept_ended_tasks();
        self.positions.iter().filter_map(|(at, position)| {
            let offset = position.returned()?;
            let committed = CommittedOffset { offset, metadata: String::new(), leader_epoch: position.epoch() };
            Some((at.clone(), committed))
        })
    }

    /// Returns the offset of the next record that a poll returns of a partition; nothing while it is not known.
    pub fn position(&self, topic: &str, partition: i32) -> Option<i64> {
        self.positions.get(&(topic.to_owned(), partition)).and_then(Position::returned)
    }

    /// Waits until there are records, at most `limit`; then it returns none.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] when records that were returned were removed from the log; `OFFSET_OUT_OF_RANGE` with
    /// [`Reset::Error`]; `UNKNOWN_TOPIC_OR_PARTITION` when brokers have not known an assigned partition for 5 s;
    /// `REQUEST_TIMED_OUT`, with the last failure in its text, when a partition could not be read for a minute; failures that
    /// no retry can mend. The consumer can be polled further.
    pub async fn poll(&mut self, limit: Duration) -> Result<Vec<ConsumedRecord>> {
        self.poll_up_to(usize::MAX, limit).await
    }

    /// Polls for at most `max_records`; further records that were read are kept for the next poll.
    ///
    /// # Errors
    ///
    /// As [`Consumer::poll`].
    pub async fn poll_up_to(&mut self, max_records: usize, limit: Duration) -> Result<Vec<ConsumedRecord>> {
        if !self.has_partitions() {
            return Err(Error::InvalidArgument("the consumer has no partitions: call assign".to_owned()));
        }
        let deadline = Instant::now() + limit.min(LONGEST_POLL);
        loop {
            self.accept_ended_tasks();
            // Before the records of other partitions, which may never have an end.
            if let Some((_, failure)) = self.failures.pop_front() {
                return Err(failure);
            }
            if !self.buffered.is_empty() {
                let records = self.give(max_records);
                self.start_tasks();
                return Ok(records);
            }
            // Polls without time begin to read, too: a later one returns the records.
            let wake = self.start_tasks().map_or(deadline, |resume| resume.min(deadline));
            if Instant::now() >= deadline {
                // The tasks may have the thread of this poll alone.
                yield_now().await;
                return Ok(Vec::new());
            }
            tokio::select! {
                Some(done) = self.tasks.join_next() => self.accept_joined(done),
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Waits for the next record.
    ///
    /// # Errors
    ///
    /// As [`Consumer::poll`].
    pub async fn next(&mut self) -> Result<ConsumedRecord> {
        loop {
            if let Some(record) = self.poll_up_to(1, Duration::from_secs(3_600)).await?.pop() {
                return Ok(record);
            }
        }
    }

    /// Hands out records of the buffer and moves the positions that the program sees.
    fn give(&mut self, max_records: usize) -> Vec<ConsumedRecord> {
        let count = self.buffered.len().min(max_records.max(1));
        let given: Vec<_> = self.buffered.drain(..count).collect();
        for record in &given {
            if let Some(position) = self.positions.get_mut(&(record.topic.clone(), record.partition)) {
                position.give(record.offset);
            }
        }
        given
    }

    /// Starts a task for each partition that has none and no records in the buffer: one fetch per leader. Returns when the
    /// first of the partitions that pause resumes.
    fn start_tasks(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut resume: Option<Instant> = None;
        let mut by_leader: HashMap<String, Vec<Asked>> = HashMap::new();
        for (at, position) in &mut self.positions {
            if let Some(until) = position.paused_until(now) {
                resume = Some(resume.map_or(until, |earliest| earliest.min(until)));
                continue;
            }
            if !position.is_idle() {
                continue;
            }
            position.begin();
            let (at, number) = (at.clone(), position.assignment());
            if let Some(start) = position.start() {
                self.tasks.spawn(find_start(self.client.clone(), at, number, start));
            } else if let Some(leader) = self.client.known_leader(&at.0, at.1) {
                self.client.refresh_when_old(&at.0);
                let address = leader.address.clone();
                by_leader.entry(address).or_default().push(Asked::new(at, position, leader));
            } else {
                self.tasks.spawn(find_leader(self.client.clone(), at, number));
            }
        }
        for (address, mut asked) in by_leader {
            // A broker fills its answer in the order of the request: a partition with a long backlog would leave no room for
            // those behind it, again and again.
            fastrand::shuffle(&mut asked);
            let (client, config) = (self.client.clone(), self.config.clone());
            self.tasks.spawn(async move { Done::Fetched(fetch(&client, &config, &address, asked).await) });
        }
        resume
    }

    fn accept_ended_tasks(&mut self) {
        while let Some(done) = self.tasks.try_join_next() {
            self.accept_joined(done);
        }
    }

    fn accept_joined(&mut self, done: std::result::Result<Done, JoinError>) {
        match done {
            Ok(done) => self.accept(done),
            Err(failure) => resume_unwind(failure.into_panic()),
        }
    }

    fn accept(&mut self, done: Done) {
        match done {
            Done::FoundLeader(at, number, outcome) => {
                if let (Some(_), Err(failure)) = (self.finished(&at, number), outcome) {
                    self.fail(&at, failure);
                }
            }
            Done::FoundStart(at, number, outcome) => {
                let Some(position) = self.finished(&at, number) else { return };
                match outcome {
                    Ok((offset, topic_id)) => position.begin_at(offset, topic_id),
                    Err(failure) => self.fail(&at, failure),
                }
            }
            Done::Fetched(answers) => {
                for Fetched { asked, outcome } in answers {
                    let Some(position) = self.finished(&asked.at, asked.assignment) else { continue };
                    if outcome.is_ok() && !position.belongs_to(&asked.topic_id) {
                        if let Some(start) = position.looked_up() {
                            // The topic was created again since the look-up.
                            position.look_up(start);
                            continue;
                        }
                        let message =
                            "the topic was deleted and created again: the position belongs to the deleted topic";
                        let failure = Error::new(&asked.operation(), ErrorCode::OffsetOutOfRange, message);
                        self.fail(&asked.at, failure);
                        continue;
                    }
                    match outcome.map(|result| position.accept(&asked.at, asked.leader_epoch, result)) {
                        Ok(Accepted::Records(records)) => self.buffered.extend(records),
                        Ok(Accepted::Truncated(truncated)) => {
                            self.failures.push_back((asked.at, Error::Truncated(truncated)));
                        }
                        Err(failure) => self.fail(&asked.at, failure),
                    }
                }
            }
        }
    }

    /// Returns the position that a task worked for, unless it has another assignment by now.
    fn finished(&mut self, at: &TopicPartition, assignment: u64) -> Option<&mut Position> {
        let position = self.positions.get_mut(at).filter(|position| position.assignment() == assignment)?;
        position.end();
        Some(position)
    }

    fn fail(&mut self, at: &TopicPartition, failure: Error) {
        let Some(position) = self.positions.get_mut(at) else { return };
        let out_of_range = failure.code() == Some(ErrorCode::OffsetOutOfRange);
        match self.config.reset {
            Reset::Earliest if out_of_range => position.look_up(At::Earliest),
            Reset::Latest if out_of_range => position.look_up(At::Latest),
            _ => match failure.call().filter(|call| call.retriable) {
                Some(call) => {
                    let over = position.pause(at, Instant::now(), call);
                    self.failures.extend(over.map(|over| (at.clone(), over)));
                }
                None => self.failures.push_back((at.clone(), failure)),
            },
        }
    }
}

async fn find_leader(client: Client, at: TopicPartition, assignment: u64) -> Done {
    let found = client.leader_of(&at.0, at.1, client.request_timeout()).await;
    Done::FoundLeader(at, assignment, found.map(|_| ()))
}

async fn find_start(client: Client, at: TopicPartition, assignment: u64, start: At) -> Done {
    let limit = client.request_timeout();
    let found: Result<(i64, String)> = async {
        // Where no record is that young, reading begins with the next one. The end is asked for first, so that none that is
        // written between the two calls is skipped.
        let end = match start {
            At::TimestampMs(_) => Some(client.list_offset_once(&at.0, at.1, At::Latest, limit).await?),
            At::Earliest | At::Latest => None,
        };
        let (offset, topic_id) = match (client.list_offset_once(&at.0, at.1, start, limit).await?, end) {
            ((None, _), Some(end)) => end,
            (found, _) => found,
        };
        Ok((offset.unwrap_or(0), topic_id))
    }
    .await;
    Done::FoundStart(at, assignment, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientConfig;
    use crate::metadata::Leader;
    use crate::v1::fetch_partition_result::Data;
    use crate::v1::{self, FetchPartitionResult};

    fn consumer(reset: Reset) -> Consumer {
        let client = Client::new(ClientConfig::new(["127.0.0.1:1"])).unwrap();
        let mut consumer = client.consumer(ConsumerConfig { reset, ..ConsumerConfig::default() });
        consumer.assign("t", 0, 3);
        consumer
    }

    /// The answer of a leader, as a task of the consumer hands it in.
    fn fetched(consumer: &mut Consumer, topic_id: &str, offsets: &[i64]) -> Done {
        let at = ("t".to_owned(), 0);
        let leader = Leader { address: "h:1".to_owned(), epoch: 0, topic_id: topic_id.to_owned() };
        let position = consumer.positions.get_mut(&at).unwrap();
        position.begin();
        let asked = Asked::new(at, position, leader);
        let records = offsets.iter().map(|offset| v1::Record { offset: *offset, ..Default::default() }).collect();
        let data = Some(Data::Records(v1::RecordList { records, ..Default::default() }));
        Done::Fetched(vec![Fetched { asked, outcome: Ok(FetchPartitionResult { data, ..Default::default() }) }])
    }

    fn accept(consumer: &mut Consumer, topic_id: &str, offsets: &[i64]) {
        let done = fetched(consumer, topic_id, offsets);
        consumer.accept(done);
    }

    #[tokio::test]
    async fn a_topic_that_was_created_again_is_read_where_the_reset_policy_says() {
        for (reset, start) in [(Reset::Earliest, At::Earliest), (Reset::Latest, At::Latest)] {
            let mut consumer = consumer(reset);
            accept(&mut consumer, "old", &[3]);
            assert_eq!(consumer.give(10).len(), 1);
            accept(&mut consumer, "new", &[4, 5]);
            assert!(consumer.buffered.is_empty() && consumer.failures.is_empty());
            assert_eq!(consumer.positions[&("t".to_owned(), 0)].start(), Some(start));
        }
    }

    #[tokio::test]
    async fn a_topic_that_was_created_again_is_an_error_without_a_reset_policy() {
        let mut consumer = consumer(Reset::Error);
        accept(&mut consumer, "old", &[]);
        accept(&mut consumer, "new", &[4, 5]);
        let failure = consumer.poll(Duration::ZERO).await.unwrap_err();
        assert_eq!(failure.code(), Some(ErrorCode::OffsetOutOfRange));
        assert!(consumer.buffered.is_empty());
    }

    #[tokio::test]
    async fn a_start_is_looked_up_again_when_the_topic_was_created_again_meanwhile() {
        let mut consumer = consumer(Reset::Error);
        consumer.assign("t", 0, At::Latest);
        let at = ("t".to_owned(), 0);
        let found = |consumer: &Consumer, offset, id: &str| {
            let number = consumer.positions[&at].assignment();
            Done::FoundStart(at.clone(), number, Ok((offset, id.to_owned())))
        };
        let done = found(&consumer, 3, "old");
        consumer.accept(done);
        accept(&mut consumer, "new", &[3, 4]);
        assert!(consumer.buffered.is_empty() && consumer.failures.is_empty());
        assert_eq!(consumer.positions[&at].start(), Some(At::Latest));
        let done = found(&consumer, 5, "new");
        consumer.accept(done);
        accept(&mut consumer, "new", &[5]);
        assert_eq!(consumer.buffered.len(), 1);
        consumer.give(1);
        accept(&mut consumer, "newest", &[6]);
        assert_eq!(consumer.failures.len(), 1, "the position was read from: the reset policy decides");
    }

    #[tokio::test]
    async fn failures_of_a_partition_that_is_assigned_again_are_forgotten() {
        let mut consumer = consumer(Reset::Error);
        consumer.fail(&("t".to_owned(), 0), Error::new("x", ErrorCode::OffsetOutOfRange, "no"));
        consumer.assign("t", 0, 5);
        assert!(consumer.poll(Duration::ZERO).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_failure_is_reported_before_records_that_other_partitions_have() {
        let mut consumer = consumer(Reset::Error);
        consumer.assign("other", 0, 0);
        consumer.buffered.push_back(ConsumedRecord::of("other", 0, v1::Record::default()));
        consumer.fail(&("t".to_owned(), 0), Error::new("x", ErrorCode::OffsetOutOfRange, "no"));
        let failure = consumer.poll(Duration::ZERO).await.unwrap_err();
        assert_eq!(failure.code(), Some(ErrorCode::OffsetOutOfRange));
        assert_eq!(consumer.poll(Duration::ZERO).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_position_that_an_answer_has_ended_is_not_committed() {
        let mut consumer = consumer(Reset::Earliest);
        accept(&mut consumer, "old", &[]);
        assert_eq!(consumer.consumed().count(), 1);
        let done = fetched(&mut consumer, "new", &[]);
        consumer.tasks.spawn(async { done });
        tokio::task::yield_now().await;
        assert_eq!(consumer.consumed().count(), 0);
    }

    #[tokio::test]
    async fn partitions_take_turns_at_the_begin_of_a_fetch() {
        let mut consumer = consumer(Reset::Earliest);
        let broker = v1::BrokerInfo { id: 1, host: "127.0.0.1".to_owned(), port: 1, ..Default::default() };
        let partitions = (0..20).map(|partition| {
            consumer.assign("t", partition, 0);
            v1::PartitionDescription { partition, leader: Some(1), ..Default::default() }
        });
        let topic =
            v1::TopicDescription { name: "t".to_owned(), partitions: partitions.collect(), ..Default::default() };
        let mut orders = std::collections::HashSet::new();
        for _ in 0..5 {
            consumer.client.metadata(|metadata| {
                let brokers = vec![broker.clone()];
                metadata.set_cluster(&v1::DescribeClusterResponse { brokers, ..Default::default() });
                metadata.set_topic(&topic, Instant::now());
            });
            consumer.start_tasks();
            let Some(Ok(Done::Fetched(answers))) = consumer.tasks.join_next().await else { panic!("no fetch") };
            orders.insert(answers.iter().map(|fetched| fetched.asked.at.1).collect::<Vec<_>>());
            consumer.positions.values_mut().for_each(Position::end);
        }
        assert!(orders.len() > 1, "{orders:?}");
    }

    #[tokio::test]
    async fn polls_without_time_read() {
        let mut reading = consumer(Reset::Earliest);
        assert!(reading.poll(Duration::ZERO).await.unwrap().is_empty());
        assert_eq!(reading.tasks.len(), 1, "no task looks for the leader");
        let mut read = consumer(Reset::Earliest);
        let done = fetched(&mut read, "id", &[3]);
        read.tasks.spawn(async { done });
        let mut records = Vec::new();
        for _ in 0..10 {
            records.extend(read.poll(Duration::ZERO).await.unwrap());
        }
        assert_eq!(records.iter().map(|record| record.offset).collect::<Vec<_>>(), [3]);
    }
}
