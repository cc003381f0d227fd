//! Repeats of a call: growing pauses, an end, and the last cause.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::error::{CallError, Error, Result};
use crate::v1::ErrorCode;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// An attempt with less time than this would turn a known failure into an unknown outcome.
const LEAST_ATTEMPT: Duration = Duration::from_millis(200);
/// The cause of a wait is reported before the wait is longer than this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// Time for which brokers may not know a topic or partition before it counts as missing: a new topic reaches them with a
/// delay.
pub(crate) const MISSING_LIMIT: Duration = Duration::from_secs(5);

/// Returns since when brokers have not known a topic or partition, after a failure at `now`.
pub(crate) fn missing_since(before: Option<Instant>, failure: &CallError, now: Instant) -> Option<Instant> {
    match failure.code {
        _ if failure.missing => before.or(Some(now)),
        ErrorCode::RequestTimedOut | ErrorCode::BrokerNotAvailable => before,
        // A broker knows the partition.
        _ => None,
    }
}

/// Reports a failure as the cause of a wait.
pub(crate) fn report(failure: &CallError) {
    report_wait(&failure.to_string());
}

/// Reports the cause of a wait: as an event of tracing, and on stderr in a program that collects no events.
pub(crate) fn report_wait(cause: &str) {
    tracing::warn!(cause, "waiting");
    if !tracing::dispatcher::has_been_set() {
        eprintln!("paceline: waiting: {cause}");
    }
}

/// The pauses between attempts: doubled from 100 ms to 1 s, with 20 % of chance.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Self {
        Backoff(FIRST_PAUSE)
    }

    /// Returns the next pause; `chance` is between 0 and 1.
    pub(crate) fn next(&mut self, chance: f64) -> Duration {
        let pause = self.0.mul_f64(0.8 + 0.4 * chance);
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
        pause
    }
}

/// One operation that may take several attempts.
#[derive(Debug)]
pub(crate) struct Retry {
    begin: Instant,
    deadline: Instant,
    request_timeout: Duration,
    backoff: Backoff,
    reported: bool,
}

impl Retry {
    pub(crate) fn until(deadline: Instant, request_timeout: Duration) -> Self {
        Retry { begin: Instant::now(), deadline, request_timeout, backoff: Backoff::new(), reported: false }
    }

    /// Returns how long the next attempt may take.
    pub(crate) fn attempt_limit(&self) -> Duration {
        self.remaining().min(self.request_timeout)
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Awaits an attempt. Reports the wait at `PATIENCE` after the begin, unless a failure was reported before.
    pub(crate) async fn attempt<T>(&mut self, operation: &str, attempt: impl Future<Output = T>) -> T {
        tokio::pin!(attempt);
        if !self.reported {
            match timeout_at(self.begin + PATIENCE, &mut attempt).await {
                Ok(done) => return done,
                Err(_) => {
                    self.reported = true;
                    report_wait(&format!("{operation}: no answer yet"));
                }
            }
        }
        attempt.await
    }

    /// Waits before the next attempt, or returns the failure when there is none.
    pub(crate) async fn after(&mut self, failure: Error) -> Result<()> {
        if !failure.is_retriable() {
            return Err(failure);
        }
        self.after_any(failure).await
    }

    /// Waits before the next attempt also after a failure that the same call could not mend.
    pub(crate) async fn after_any(&mut self, failure: Error) -> Result<()> {
        let Some(call) = failure.call() else { return Err(failure) };
        let spare = self.remaining().saturating_sub(LEAST_ATTEMPT);
        if spare.is_zero() {
            return Err(failure);
        }
        let pause = self.backoff.next(fastrand::f64()).max(call.retry_after).min(spare);
        if !self.reported && self.begin.elapsed() + pause >= PATIENCE {
            self.reported = true;
            report(call);
        }
        sleep(pause).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: ErrorCode) -> Error {
        Error::new("testing", code, "no")
    }

    #[test]
    fn pauses_double_up_to_a_second_with_a_fifth_of_chance() {
        let mut backoff = Backoff::new();
        let pauses: Vec<u128> = (0..6).map(|_| backoff.next(0.5).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(backoff.next(0.0).as_millis(), 800);
        assert_eq!(backoff.next(1.0).as_millis(), 1200);
    }

    #[tokio::test(start_paused = true)]
    async fn retries_end_with_the_last_failure() {
        let mut retry = Retry::until(Instant::now() + Duration::from_secs(5), Duration::from_secs(1));
        let mut attempts = 0;
        let last = loop {
            attempts += 1;
            if let Err(last) = retry.after(failure(ErrorCode::NotEnoughReplicas)).await {
                break last;
            }
        };
        assert_eq!(last.code(), Some(ErrorCode::NotEnoughReplicas));
        assert!((6..=10).contains(&attempts), "{attempts} attempts");
        assert!(retry.remaining() <= LEAST_ATTEMPT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_lasts_is_reported_within_two_seconds() {
        for _ in 0..20 {
            let mut retry = Retry::until(Instant::now() + Duration::from_secs(60), Duration::from_secs(1));
            let mut failed = Duration::ZERO;
            while !retry.reported {
                failed = retry.begin.elapsed();
                retry.after(failure(ErrorCode::BrokerNotAvailable)).await.unwrap();
            }
            assert!(failed < PATIENCE, "reported after {failed:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_attempt_without_an_answer_is_reported() {
        let mut retry = Retry::until(Instant::now() + Duration::from_secs(60), Duration::from_secs(30));
        retry.attempt("asking", sleep(Duration::from_secs(1))).await;
        assert!(!retry.reported);
        assert!(
            tokio::time::timeout(Duration::from_secs(1), retry.attempt("asking", sleep(Duration::from_secs(3))))
                .await
                .is_err()
        );
        assert!(retry.reported);
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_counts_as_unknown_until_a_broker_knows_it() {
        let begin = Instant::now();
        let missing = Error::missing("x", "no".to_owned());
        let note = |before, failure: &Error| missing_since(before, failure.call().unwrap(), Instant::now());
        let since = note(None, &missing);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(note(since, &missing), Some(begin));
        assert_eq!(note(since, &failure(ErrorCode::RequestTimedOut)), Some(begin));
        assert_eq!(note(since, &failure(ErrorCode::LeaderNotAvailable)), None);
        assert_eq!(note(None, &failure(ErrorCode::UnknownTopicOrPartition)), None, "a leader, not metadata");
    }

    #[tokio::test(start_paused = true)]
    async fn final_failures_are_not_repeated() {
        let mut retry = Retry::until(Instant::now() + Duration::from_secs(5), Duration::from_secs(1));
        assert!(retry.after(failure(ErrorCode::InvalidTopic)).await.is_err());
        assert_eq!(retry.remaining(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn the_pause_that_a_server_names_is_kept() {
        let mut throttled = failure(ErrorCode::Throttled);
        throttled.call_mut().unwrap().retry_after = Duration::from_secs(3);
        let mut retry = Retry::until(Instant::now() + Duration::from_secs(5), Duration::from_secs(1));
        retry.after(throttled).await.unwrap();
        assert_eq!(retry.remaining(), Duration::from_secs(2));
    }
}
