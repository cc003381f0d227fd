//! The position of a consumer in one partition. Pure: no calls, no clock.

use tokio::time::Instant;

use crate::admin::At;
use crate::consumer::{Start, TopicPartition};
use crate::error::{CallError, Truncated};
use crate::record::ConsumedRecord;
use crate::retry::{Backoff, PATIENCE, report};
use crate::v1;
use crate::v1::fetch_partition_result::Data;

#[derive(Debug)]
pub(crate) struct Position {
    assignment: u64,
    /// Looked up before the first fetch; None once the position is known.
    start: Option<At>,
    /// Offset to fetch next.
    next: i64,
    /// Offset after the last record that a poll returned.
    returned: i64,
    /// Leader epoch under which records were last read.
    epoch: Option<i32>,
    /// Id of the topic that the position belongs to, as a leader has confirmed it; empty before.
    topic_id: String,
    /// Whether a task works for this partition.
    busy: bool,
    failing: Option<Failing>,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    until: Instant,
    backoff: Backoff,
    reported: bool,
}

/// What became of the answer of a fetch.
#[derive(Debug, PartialEq)]
pub(crate) enum Accepted {
    Records(Vec<ConsumedRecord>),
    Truncated(Truncated),
}

impl Position {
    pub(crate) fn new(assignment: u64, start: Start) -> Self {
        let (start, next) = match start {
            Start::Offset(offset) => (None, offset),
            Start::At(at) => (Some(at), 0),
        };
        Position {
            assignment,
            start,
            next,
            returned: next,
            epoch: None,
            topic_id: String::new(),
            busy: false,
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

    /// Returns when a partition that pauses after a failure resumes.
    pub(crate) fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.failing.as_ref().map(|failing| failing.until).filter(|until| *until > now)
    }

    pub(crate) fn pause(&mut self, now: Instant, failure: &CallError) {
        let failing = self.failing.get_or_insert_with(|| Failing {
            since: now,
            until: now,
            backoff: Backoff::new(),
            reported: false,
        });
        failing.until = now + failing.backoff.next(fastrand::f64()).max(failure.retry_after);
        if !failing.reported && now - failing.since >= PATIENCE {
            failing.reported = true;
            report(failure);
        }
    }

    pub(crate) fn seek(&mut self, offset: i64) {
        (self.next, self.returned, self.start, self.failing) = (offset, offset, None, None);
    }

    /// Applies a reset policy: the next offset is looked up.
    pub(crate) fn look_up(&mut self, at: At) {
        (self.start, self.epoch) = (Some(at), None);
        self.topic_id.clear();
    }

    /// Takes note that a leader has answered for the topic with this id. Returns whether the position belongs to it, and not
    /// to a deleted topic of the same name.
    pub(crate) fn belongs_to(&mut self, topic_id: &str) -> bool {
        if self.topic_id.is_empty() {
            topic_id.clone_into(&mut self.topic_id);
        }
        topic_id.is_empty() || self.topic_id == topic_id
    }

    pub(crate) fn give(&mut self, offset: i64) {
        self.returned = offset + 1;
    }

    /// Moves behind the records of an answer.
    pub(crate) fn accept(
        &mut self,
        at: &TopicPartition,
        leader_epoch: i32,
        result: v1::FetchPartitionResult,
    ) -> Accepted {
        self.failing = None;
        if let Some(diverging) = result.diverging_epoch {
            self.epoch = Some(diverging.epoch);
            if diverging.end_offset >= self.next {
                // Every record that was read is still there; the next fetch names the epoch that the leader knows.
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
        let mut position = Position::new(1, Start::Offset(5));
        assert_eq!(offsets(position.accept(&at(), 3, answer(&[3, 4, 5, 8]))), [5, 8]);
        assert_eq!((position.next(), position.returned(), position.epoch()), (9, Some(5), Some(3)));
        assert!(!position.is_idle(), "records wait to be returned");
        position.give(5);
        position.give(8);
        assert!(position.is_idle());
    }

    #[test]
    fn a_log_that_was_truncated_below_the_position_is_reported_once() {
        let mut position = Position::new(1, Start::Offset(10));
        let Accepted::Truncated(truncated) = position.accept(&at(), 3, diverging(2, 7)) else {
            panic!("no truncation")
        };
        assert_eq!((truncated.position, truncated.divergent_offset), (10, 7));
        assert_eq!((position.next(), position.returned(), position.epoch()), (7, Some(7), Some(2)));
    }

    #[test]
    fn an_epoch_that_ends_above_the_position_only_changes_the_epoch() {
        let mut position = Position::new(1, Start::Offset(10));
        assert_eq!(offsets(position.accept(&at(), 3, diverging(2, 10))), [] as [i64; 0]);
        assert_eq!((position.next(), position.epoch()), (10, Some(2)));
    }

    #[test]
    fn a_position_that_is_looked_up_is_not_known() {
        let mut position = Position::new(1, Start::At(At::Latest));
        assert_eq!(position.returned(), None);
        assert!(position.is_idle());
        position.seek(40);
        assert_eq!(position.returned(), Some(40));
        position.look_up(At::Earliest);
        assert_eq!((position.returned(), position.start()), (None, Some(At::Earliest)));
    }

    #[test]
    fn a_position_belongs_to_one_topic_until_it_is_looked_up_again() {
        let mut position = Position::new(1, Start::Offset(10));
        assert!(position.belongs_to("") && position.belongs_to("old") && position.belongs_to("old"));
        assert!(!position.belongs_to("new") && position.belongs_to(""));
        position.look_up(At::Earliest);
        position.seek(0);
        assert!(position.belongs_to("new") && !position.belongs_to("old"));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_until_an_answer() {
        let mut position = Position::new(1, Start::Offset(0));
        let failure = crate::Error::new("x", v1::ErrorCode::NotLeaderOrFollower, "no");
        let now = Instant::now();
        let pause = |position: &mut Position| {
            position.pause(now, failure.call().unwrap());
            position.paused_until(now).unwrap() - now
        };
        let (first, second) = (pause(&mut position), pause(&mut position));
        assert!(first < Duration::from_millis(121) && second > Duration::from_millis(159), "{first:?} {second:?}");
        position.accept(&at(), 0, answer(&[]));
        assert_eq!(position.paused_until(now), None);
    }
}
