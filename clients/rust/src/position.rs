//! The position of a consumer in one partition. Pure: no calls, no clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::admin::At;
use crate::consumer::{Start, TopicPartition};
use crate::error::{CallError, Error, Truncated};
use crate::record::ConsumedRecord;
use crate::retry::{Backoff, MISSING_LIMIT, PATIENCE, missing_since, report};
use crate::v1::fetch_partition_result::Data;
use crate::v1::{self, ErrorCode};

/// How long a partition may be unreadable before a poll fails.
const HINDRANCE_LIMIT: Duration = Duration::from_secs(60);
/// Attempts that must fail before a poll fails: a program that polls rarely makes few attempts within the limits.
const LEAST_ATTEMPTS: u32 = 3;

#[derive(Debug)]
pub(crate) struct Position {
    assignment: u64,
    /// Start to look up before the first fetch; None once the position is known.
    start: Option<At>,
    /// The start whose look-up returned `next`; None after the first fetch.
    looked_up: Option<At>,
    /// Offset to fetch next.
    next: i64,
    /// Offset after the last record that a poll returned.
    returned: i64,
    /// Leader epoch under which records were last read.
    epoch: Option<i32>,
    /// Id of the topic to which the position belongs; empty until a leader has confirmed it.
    topic_id: String,
    /// Whether a task works for this partition.
    busy: bool,
    /// Whether a leader or the group has confirmed that the partition exists.
    found: bool,
    failing: Option<Failing>,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    /// When brokers first did not know the partition.
    missing_since: Option<Instant>,
    attempts: u32,
    /// The last failure that was not a time-out; the first failure if all were time-outs.
    cause: CallError,
    until: Instant,
    backoff: Backoff,
    reported: bool,
}

/// The records of a fetch response, or the truncation that it reports.
#[derive(Debug, PartialEq)]
pub(crate) enum Accepted {
    Records(Vec<ConsumedRecord>),
    Truncated(Truncated),
}

impl Position {
    /// Creates a position. With `found`, the partition is known to exist.
    pub(crate) fn new(assignment: u64, start: Start, found: bool) -> Self {
        let (start, next) = match start {
            Start::Offset(offset) => (None, offset),
            Start::At(at) => (Some(at), 0),
        };
        Position {
            assignment,
            start,
            looked_up: None,
            next,
            returned: next,
            epoch: None,
            topic_id: String::new(),
            busy: false,
            found,
            failing: None,
        }
    }

    pub(crate) fn assignment(&self) -> u64 {
        self.assignment
    }

    pub(crate) fn start(&self) -> Option<At> {
        self.start
    }

    pub(crate) fn next(&self) -> i64 {
        self.next
    }

    pub(crate) fn epoch(&self) -> Option<i32> {
        self.epoch
    }

    pub(crate) fn set_epoch(&mut self, epoch: Option<i32>) {
        self.epoch = epoch;
    }

    pub(crate) fn returned(&self) -> Option<i64> {
        self.start.is_none().then_some(self.returned)
    }

    /// Returns whether no task works for this partition and every record that was read was returned.
    pub(crate) fn is_idle(&self) -> bool {
        !self.busy && (self.start.is_some() || self.returned == self.next)
    }

    pub(crate) fn begin(&mut self) {
        self.busy = true;
    }

    pub(crate) fn end(&mut self) {
        self.busy = false;
    }

    /// Returns the end of the pause after a failure, None without a pause.
    pub(crate) fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.failing.as_ref().map(|failing| failing.until).filter(|until| *until > now)
    }

    /// Pauses after a retriable failure. When the partition could not be read for too long, returns the error for the poll
    /// and restarts the time limits.
    pub(crate) fn pause(&mut self, at: &TopicPartition, now: Instant, failure: &CallError) -> Option<Error> {
        let failing = self.failing.get_or_insert_with(|| Failing {
            since: now,
            missing_since: None,
            attempts: 0,
            cause: failure.clone(),
            until: now,
            backoff: Backoff::new(),
            reported: false,
        });
        failing.until = now + failing.backoff.next(fastrand::f64()).max(failure.retry_after);
        if !failing.reported && now - failing.since >= PATIENCE {
            failing.reported = true;
            report(failure);
        }
        failing.attempts += 1;
        if failure.code != ErrorCode::RequestTimedOut {
            failing.cause = failure.clone();
        }
        failing.missing_since = missing_since(failing.missing_since, failure, now);
        let attempts = failing.attempts;
        let is_over = |since: Instant, limit| attempts >= LEAST_ATTEMPTS && now - since >= limit;
        let is_missing = failing.missing_since.is_some_and(|since| is_over(since, MISSING_LIMIT));
        let over = if !self.found && failure.missing && is_missing {
            Error::Call(Box::new(failure.clone()))
        } else if is_over(failing.since, HINDRANCE_LIMIT) {
            let message = format!("the partition could not be read for {HINDRANCE_LIMIT:?}: {}", failing.cause);
            Error::new(&format!("reading {}/{}", at.0, at.1), ErrorCode::RequestTimedOut, message)
        } else {
            return None;
        };
        (failing.since, failing.missing_since, failing.attempts) = (now, None, 0);
        Some(over)
    }

    /// Sets the position to the offset that the leader returned for the start; `topic_id` is the id of its topic.
    pub(crate) fn begin_at(&mut self, offset: i64, topic_id: String) {
        (self.next, self.returned, self.topic_id, self.found) = (offset, offset, topic_id, true);
        (self.looked_up, self.failing) = (self.start.take(), None);
    }

    /// Returns the start of the last look-up; None after a fetch from that position.
    pub(crate) fn looked_up(&self) -> Option<At> {
        self.looked_up
    }

    /// Applies a reset policy: the next offset is looked up.
    pub(crate) fn look_up(&mut self, at: At) {
        (self.start, self.looked_up, self.epoch) = (Some(at), None, None);
        self.topic_id.clear();
    }

    /// Returns whether the position belongs to the topic with this id and not to a deleted topic with the same name. A
    /// position without a topic id takes this id.
    pub(crate) fn belongs_to(&mut self, topic_id: &str) -> bool {
        if self.topic_id.is_empty() {
            topic_id.clone_into(&mut self.topic_id);
        }
        topic_id.is_empty() || self.topic_id == topic_id
    }

    pub(crate) fn give(&mut self, offset: i64) {
        self.returned = offset + 1;
    }

    /// Advances the position beyond the records of a fetch response, or back to the end of a truncation.
    pub(crate) fn accept(
        &mut self,
        at: &TopicPartition,
        leader_epoch: i32,
        result: v1::FetchPartitionResult,
    ) -> Accepted {
        (self.looked_up, self.failing, self.found) = (None, None, true);
        if let Some(diverging) = result.diverging_epoch {
            self.epoch = Some(diverging.epoch);
            if diverging.end_offset >= self.next {
                // No record that was read was truncated; the next fetch sends the epoch that the leader knows.
                return Accepted::Records(Vec::new());
            }
            let position = self.next;
            (self.next, self.returned) = (diverging.end_offset, diverging.end_offset);
            let (topic, partition) = at.clone();
            return Accepted::Truncated(Truncated {
                topic,
                partition,
                position,
                divergent_offset: diverging.end_offset,
            });
        }
        let records = match result.data {
            Some(Data::Records(list)) => list.records,
            _ => Vec::new(),
        };
        let first = self.next;
        let records: Vec<_> = records
            .into_iter()
            .filter(|record| record.offset >= first)
            .map(|record| ConsumedRecord::of(&at.0, at.1, record))
            .collect();
        if let Some(last) = records.last() {
            self.next = last.offset + 1;
            self.epoch = Some(leader_epoch);
        }
        Accepted::Records(records)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at() -> TopicPartition {
        ("t".to_owned(), 0)
    }

    fn answer(offsets: &[i64]) -> v1::FetchPartitionResult {
        let records = offsets.iter().map(|offset| v1::Record { offset: *offset, ..Default::default() }).collect();
        let data = Some(Data::Records(v1::RecordList { records, ..Default::default() }));
        v1::FetchPartitionResult { data, ..Default::default() }
    }

    fn diverging(epoch: i32, end_offset: i64) -> v1::FetchPartitionResult {
        let diverging_epoch = Some(v1::EpochEndOffset { epoch, end_offset });
        v1::FetchPartitionResult { diverging_epoch, ..Default::default() }
    }

    fn offsets(accepted: Accepted) -> Vec<i64> {
        match accepted {
            Accepted::Records(records) => records.iter().map(|record| record.offset).collect(),
            Accepted::Truncated(truncated) => panic!("{truncated}"),
        }
    }

    #[test]
    fn records_below_the_position_are_dropped() {
        let mut position = Position::new(1, Start::Offset(5), false);
        assert_eq!(offsets(position.accept(&at(), 3, answer(&[3, 4, 5, 8]))), [5, 8]);
        assert_eq!((position.next(), position.returned(), position.epoch()), (9, Some(5), Some(3)));
        assert!(!position.is_idle(), "records wait to be returned");
        position.give(5);
        position.give(8);
        assert!(position.is_idle());
    }

    #[test]
    fn a_log_that_was_truncated_below_the_position_is_reported_once() {
        let mut position = Position::new(1, Start::Offset(10), false);
        let Accepted::Truncated(truncated) = position.accept(&at(), 3, diverging(2, 7)) else {
            panic!("no truncation")
        };
        assert_eq!((truncated.position, truncated.divergent_offset), (10, 7));
        assert_eq!((position.next(), position.returned(), position.epoch()), (7, Some(7), Some(2)));
    }

    #[test]
    fn an_epoch_that_ends_above_the_position_only_changes_the_epoch() {
        let mut position = Position::new(1, Start::Offset(10), false);
        assert_eq!(offsets(position.accept(&at(), 3, diverging(2, 10))), [] as [i64; 0]);
        assert_eq!((position.next(), position.epoch()), (10, Some(2)));
    }

    #[test]
    fn a_position_that_is_looked_up_is_not_known() {
        let mut position = Position::new(1, Start::At(At::Latest), false);
        assert_eq!(position.returned(), None);
        assert!(position.is_idle());
        position.begin_at(40, String::new());
        assert_eq!(position.returned(), Some(40));
        position.look_up(At::Earliest);
        assert_eq!((position.returned(), position.start()), (None, Some(At::Earliest)));
    }

    #[test]
    fn a_position_belongs_to_one_topic_until_it_is_looked_up_again() {
        let mut position = Position::new(1, Start::Offset(10), false);
        assert!(position.belongs_to("") && position.belongs_to("old") && position.belongs_to("old"));
        assert!(!position.belongs_to("new") && position.belongs_to(""));
        position.look_up(At::Earliest);
        position.begin_at(0, String::new());
        assert!(position.belongs_to("new") && !position.belongs_to("old"));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_until_an_answer() {
        let mut position = Position::new(1, Start::Offset(0), false);
        let failure = crate::Error::new("x", v1::ErrorCode::NotLeaderOrFollower, "no");
        let now = Instant::now();
        let pause = |position: &mut Position| {
            assert!(position.pause(&at(), now, failure.call().unwrap()).is_none());
            position.paused_until(now).unwrap() - now
        };
        let (first, second) = (pause(&mut position), pause(&mut position));
        assert!(first < Duration::from_millis(121) && second > Duration::from_millis(159), "{first:?} {second:?}");
        position.accept(&at(), 0, answer(&[]));
        assert_eq!(position.paused_until(now), None);
    }

    fn missing() -> Error {
        Error::missing("looking", "no".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_that_brokers_do_not_know_is_an_error_after_some_seconds() {
        let unknown = || Error::new("x", ErrorCode::UnknownTopicOrPartition, "the leader does not know it yet");
        let silent = || Error::new("x", ErrorCode::BrokerNotAvailable, "no");
        let (none, second) = (Duration::ZERO, Duration::from_secs(1));
        let late = MISSING_LIMIT;
        let few = vec![(none, missing()), (late, missing())];
        for (found, attempts, fails, case) in [
            (false, vec![(none, missing()), (second, missing()), (second * 4, missing())], false, "too early"),
            (false, vec![(none, missing()), (second, missing()), (late, missing())], true, "late enough"),
            (false, few, false, "too few attempts"),
            (false, vec![(none, missing()), (second, silent()), (late, missing())], true, "no answer in between"),
            (false, vec![(none, missing()), (second, unknown()), (late, missing())], false, "known in between"),
            (false, vec![(none, unknown()), (second, unknown()), (late, unknown())], false, "known to brokers"),
            (true, vec![(none, missing()), (second, missing()), (late, missing())], false, "found before"),
        ] {
            let mut position = Position::new(1, Start::Offset(0), found);
            let begin = Instant::now();
            let last = attempts.len() - 1;
            for (index, (after, failure)) in attempts.into_iter().enumerate() {
                let over = position.pause(&at(), begin + after, failure.call().unwrap());
                assert_eq!(over.is_some(), fails && index == last, "{case}: {over:?}");
                if let Some(over) = over {
                    assert_eq!(over.code(), Some(ErrorCode::UnknownTopicOrPartition), "{case}");
                    let again = position.pause(&at(), begin + after + second, missing().call().unwrap());
                    assert!(again.is_none(), "{case}: the time does not begin again: {again:?}");
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_that_cannot_be_read_for_a_minute_is_an_error_with_the_cause() {
        let mut position = Position::new(1, Start::Offset(0), true);
        let begin = Instant::now();
        let late = Error::new("x", ErrorCode::RequestTimedOut, "late");
        assert!(position.pause(&at(), begin, missing().call().unwrap()).is_none());
        assert!(position.pause(&at(), begin, late.call().unwrap()).is_none());
        let over = position.pause(&at(), begin + HINDRANCE_LIMIT, late.call().unwrap()).unwrap();
        assert_eq!(over.code(), Some(ErrorCode::RequestTimedOut));
        assert!(over.to_string().contains("t/0") && over.to_string().contains("looking"), "{over}");
    }
}
