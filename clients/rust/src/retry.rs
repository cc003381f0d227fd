//! Repeats of a call: growing pauses, an end, and the last cause.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::{CallError, Error, Result};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// An attempt with less time than this would turn a known failure into an unknown outcome.
const LEAST_ATTEMPT: Duration = Duration::from_millis(200);
/// A failure that lasts longer is reported.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Tells what a call waits for: as an event of tracing, and on stderr in a program that collects no events.
pub(crate) fn report(failure: &CallError) {
    report_wait(&failure.to_string());
}

/// Tells what a call waits for that has not failed.
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
        if !self.reported && self.begin.elapsed() >= PATIENCE {
            self.reported = true;
            report(call);
        }
        let pause = self.backoff.next(fastrand::f64()).max(call.retry_after);
        sleep(pause.min(spare)).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::ErrorCode;

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
