//! Errors with the code of a server, and the retry rules that the contract states for each code.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, ConnectError, Status, TimeoutExpired};
use tonic_types::StatusExt;

use crate::error_options::options_of;
pub use crate::v1::ErrorCode;
use crate::v1::{GroupError, LeaderHint, PartitionError, TopicError};

/// The domain of `google.rpc.ErrorInfo` details that Paceline's servers write.
const ERROR_DOMAIN: &str = "paceline";

/// The result of a call of this library.
pub type Result<T> = std::result::Result<T, Error>;

/// The error of a call of this library. `Debug` prints the same text as `Display`, so that a `main` that returns the error
/// prints a readable message.
#[derive(Clone)]
#[non_exhaustive]
pub enum Error {
    /// A server refused a call, or no server answered.
    Call(Box<CallError>),
    /// Records that the consumer had returned were removed from the log (KIP-320).
    Truncated(Truncated),
    /// A setting or an argument is invalid; no request was sent.
    InvalidArgument(String),
    /// The producer was closed.
    Closed,
    /// Offsets were not committed because the group has rebalanced without this member; other members may own the
    /// partitions. Poll to join again. Its code is `ILLEGAL_GENERATION`.
    CommitFailed {
        /// The group.
        group_id: String,
        /// Why this member is not in the current generation.
        cause: String,
        /// Whether the offsets were certainly not committed; false after an earlier attempt without an answer.
        definite: bool,
    },
}

/// A failed call, with the code that a server sent or the nearest code for a call without an answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallError {
    /// The server's code; `RequestTimedOut` or `BrokerNotAvailable` when no server answered.
    pub code: ErrorCode,
    /// The call that failed, for example "producing to rides/0".
    pub operation: String,
    /// The reason, in one sentence.
    pub message: String,
    /// Whether the same call may succeed later.
    pub retriable: bool,
    /// Whether the operation was certainly not carried out; false means that its outcome is unknown.
    pub definite: bool,

    pub(crate) refresh: bool,
    /// Whether the brokers' metadata lacks the topic or the partition.
    pub(crate) missing: bool,
    pub(crate) retry_after: Duration,
    pub(crate) leader: Option<LeaderHint>,
    pub(crate) controller: Option<String>,
    pub(crate) member_id: Option<String>,
    /// Whether a Paceline server sent the code.
    answered: bool,
    source: Option<Arc<Status>>,
}

/// Records that the consumer had returned are no longer in the log. The next poll continues at `divergent_offset`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Truncated {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset that the consumer had read up to.
    pub position: i64,
    /// The first offset at which the log differs from the records that were read.
    pub divergent_offset: i64,
}

impl CallError {
    /// Returns whether a Paceline server sent this error.
    pub(crate) fn is_from_server(&self) -> bool {
        self.answered
    }
}

impl ErrorCode {
    /// Returns the name of the code without its prefix, for example `NOT_CONTROLLER`.
    pub fn name(self) -> &'static str {
        self.as_str_name().trim_start_matches("ERROR_CODE_")
    }
}

impl Error {
    /// Returns the code of a failed call or commit.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Error::CommitFailed { .. } => Some(ErrorCode::IllegalGeneration),
            _ => self.call().map(|call| call.code),
        }
    }

    /// Returns whether the same call may succeed later.
    pub fn is_retriable(&self) -> bool {
        self.call().is_some_and(|call| call.retriable)
    }

    /// Returns whether the operation was certainly not carried out.
    pub fn is_definite(&self) -> bool {
        match self {
            Error::Call(call) => call.definite,
            Error::InvalidArgument(_) => true,
            Error::CommitFailed { definite, .. } => *definite,
            Error::Truncated(_) | Error::Closed => false,
        }
    }

    /// Returns whether the brokers' metadata lacks the topic or the partition.
    pub(crate) fn is_missing(&self) -> bool {
        self.call().is_some_and(|call| call.missing)
    }

    pub(crate) fn call(&self) -> Option<&CallError> {
        match self {
            Error::Call(call) => Some(call),
            _ => None,
        }
    }

    pub(crate) fn call_mut(&mut self) -> Option<&mut CallError> {
        match self {
            Error::Call(call) => Some(call),
            _ => None,
        }
    }

    pub(crate) fn new(operation: &str, code: ErrorCode, message: impl Into<String>) -> Self {
        let (retriable, definite, refresh) = options_of(code);
        Error::Call(Box::new(CallError {
            code,
            operation: operation.to_owned(),
            message: message.into(),
            // After a metadata refresh, the call goes to another broker or has another epoch, so a retry may succeed.
            retriable: retriable || refresh,
            definite,
            refresh,
            missing: false,
            retry_after: Duration::ZERO,
            leader: None,
            controller: None,
            member_id: None,
            answered: false,
            source: None,
        }))
    }

    /// Returns the error of a call without an answer within `limit`; the outcome of the call is unknown.
    pub(crate) fn timed_out(operation: &str, limit: Duration) -> Self {
        let mut error = Error::new(operation, ErrorCode::RequestTimedOut, format!("no answer within {limit:?}"));
        if let Some(call) = error.call_mut() {
            call.refresh = true;
        }
        error
    }

    /// Returns the error of a lookup in metadata that lacks the topic or the partition.
    pub(crate) fn missing(operation: &str, message: String) -> Self {
        let mut error = Error::new(operation, ErrorCode::UnknownTopicOrPartition, message);
        if let Some(call) = error.call_mut() {
            call.missing = true;
        }
        error
    }

    /// Returns the error for an answer that the contract does not allow.
    pub(crate) fn bad_answer(operation: &str, message: &str) -> Self {
        Error::new(operation, ErrorCode::UnknownServerError, message)
    }

    pub(crate) fn of_partition(operation: &str, detail: PartitionError) -> Self {
        let mut error = Error::new(operation, detail.code(), detail.message);
        if let Some(call) = error.call_mut() {
            call.answered = true;
            call.leader = detail.current_leader;
            call.retry_after = Duration::from_millis(detail.retry_after_ms.unwrap_or(0).max(0) as u64);
        }
        error
    }

    pub(crate) fn of_topic(operation: &str, detail: TopicError) -> Self {
        let mut error = Error::answered(operation, detail.code(), detail.message);
        if let Some(call) = error.call_mut() {
            call.missing = call.code == ErrorCode::UnknownTopicOrPartition;
        }
        error
    }

    pub(crate) fn of_group(operation: &str, detail: GroupError) -> Self {
        Error::answered(operation, detail.code(), detail.message)
    }

    fn answered(operation: &str, code: ErrorCode, message: String) -> Self {
        let mut error = Error::new(operation, code, message);
        if let Some(call) = error.call_mut() {
            call.answered = true;
        }
        error
    }

    /// Returns the error of a call that failed as a whole.
    pub(crate) fn of_status(operation: &str, status: Status) -> Self {
        let info = status.get_details_error_info().filter(|info| info.domain == ERROR_DOMAIN);
        let mut error = match &info {
            // A code that these protos do not have is neither retriable nor definite.
            Some(info) => {
                let code = ErrorCode::from_str_name(&format!("ERROR_CODE_{}", info.reason));
                Error::new(operation, code.unwrap_or(ErrorCode::UnknownServerError), status.message())
            }
            None => without_answer(operation, &status),
        };
        if let Some(call) = error.call_mut() {
            if let Some(mut info) = info {
                call.answered = true;
                call.controller = info.metadata.remove("address").filter(|address| !address.is_empty());
                call.member_id = info.metadata.remove("member_id");
                let pause = status.get_details_retry_info().and_then(|retry| retry.retry_delay);
                call.retry_after = pause.unwrap_or_default();
            }
            call.source = Some(Arc::new(status));
        }
        error
    }
}

/// Returns the error of a call that gRPC ended. It is definite if no connection was made or a message was too large.
fn without_answer(operation: &str, status: &Status) -> Error {
    let too_large = status.code() == Code::ResourceExhausted && status.message().contains("larger than");
    let code = match status.code() {
        Code::DeadlineExceeded => ErrorCode::RequestTimedOut,
        Code::Cancelled if has_source::<TimeoutExpired>(status) => ErrorCode::RequestTimedOut,
        _ if too_large => ErrorCode::MessageTooLarge,
        // gRPC itself ends calls with any of these when a connection breaks.
        Code::Unavailable | Code::Cancelled | Code::ResourceExhausted | Code::Internal | Code::Unknown => {
            ErrorCode::BrokerNotAvailable
        }
        _ => ErrorCode::UnknownServerError,
    };
    let mut error = Error::new(operation, code, format!("{:?}: {}", status.code(), deepest(status)));
    if let Some(call) = error.call_mut() {
        call.refresh = call.retriable;
        // Without a connection, no request was sent. A server does not read a request over its limit; but when it cannot
        // send a response ("Sent message larger than max"), it has carried out the request.
        let unread = too_large && status.message().contains("Received message");
        call.definite = unread || has_source::<ConnectError>(status);
    }
    error
}

fn has_source<E: StdError + 'static>(status: &Status) -> bool {
    std::iter::successors(status.source(), |error| (*error).source()).any(|error| error.is::<E>())
}

/// Returns the message of the status with the last cause, for example "tcp connect error: Connection refused".
fn deepest(status: &Status) -> String {
    let last = std::iter::successors(status.source(), |error| (*error).source()).last().map(ToString::to_string);
    match last {
        Some(cause) if !status.message().contains(&cause) => format!("{}: {cause}", status.message()),
        _ => status.message().to_owned(),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Call(call) => call.fmt(f),
            Error::Truncated(truncated) => truncated.fmt(f),
            Error::InvalidArgument(message) => f.write_str(message),
            Error::CommitFailed { group_id, cause, .. } => write!(
                f,
                "committing offsets of group {group_id}: the group has rebalanced without this member ({cause}); poll more \
                 often, take fewer records per poll or raise max_poll_interval"
            ),
            Error::Closed => f.write_str("the producer was closed before the outcome of the record was known"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.operation, self.code.name(), self.message)
    }
}

impl fmt::Display for Truncated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Truncated { topic, partition, position, divergent_offset } = self;
        write!(
            f,
            "{topic}/{partition} was truncated: read up to offset {position}, the log diverges at {divergent_offset}"
        )
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Call(call) => call.source.as_deref().map(|status| status as &(dyn StdError + 'static)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_types::{ErrorDetails, StatusExt};

    fn status(code: Code, reason: &str) -> Status {
        let metadata = [("address".to_owned(), "10.0.0.1:9082".to_owned())];
        let mut details = ErrorDetails::with_error_info(reason, ERROR_DOMAIN, metadata);
        details.set_retry_info(Some(Duration::from_millis(700)));
        Status::with_error_details(code, "no", details)
    }

    #[test]
    fn every_code_has_the_options_of_the_table_in_the_guide() {
        let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/clients.md")).unwrap();
        let rows: Vec<Vec<&str>> = guide
            .lines()
            .skip_while(|line| !line.starts_with("<!-- errors:"))
            .take_while(|line| !line.starts_with("<!-- errors end"))
            .skip(3)
            .map(|line| line.split('|').map(str::trim).collect())
            .collect();
        assert!(rows.len() > 60, "the table has {} rows", rows.len());
        for row in rows {
            let name = row[1].split(' ').next().unwrap();
            let code = ErrorCode::from_str_name(&format!("ERROR_CODE_{name}")).expect(name);
            assert_eq!(options_of(code), (row[3] == "yes", row[4] == "yes", row[5] == "yes"), "{name}");
        }
    }

    #[test]
    fn status_with_error_info_has_code_controller_and_pause() {
        let error = Error::of_status("creating topic t", status(Code::FailedPrecondition, "NOT_CONTROLLER"));
        let call = error.call().unwrap();
        assert_eq!(call.code, ErrorCode::NotController);
        assert_eq!(call.controller.as_deref(), Some("10.0.0.1:9082"));
        assert_eq!(call.retry_after, Duration::from_millis(700));
        assert!(call.retriable && call.definite && call.refresh);
        assert_eq!(error.to_string(), "creating topic t: NOT_CONTROLLER: no");
        assert_eq!(format!("{error:?}"), error.to_string());
    }

    #[test]
    fn unknown_codes_are_neither_retriable_nor_definite() {
        let error = Error::of_status("x", status(Code::Unavailable, "SOMETHING_NEW"));
        assert!(!error.is_retriable() && !error.is_definite());
        let detail = PartitionError { code: 9_999, ..Default::default() };
        let error = Error::of_partition("x", detail);
        assert!(!error.is_retriable() && !error.is_definite());
    }

    #[test]
    fn a_call_that_grpc_ended_has_an_unknown_outcome() {
        for code in [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::Internal] {
            let error = Error::of_status("x", Status::new(code, "broken"));
            assert!(error.is_retriable() && !error.is_definite(), "{code:?}");
        }
    }

    #[test]
    fn a_message_above_the_limit_of_the_server_is_not_sent_again() {
        let error = Error::of_status("x", Status::resource_exhausted("Received message larger than max (9 vs. 4)"));
        assert_eq!(error.code(), Some(ErrorCode::MessageTooLarge));
        assert!(!error.is_retriable() && error.is_definite());
    }

    #[test]
    fn a_response_above_the_limit_of_the_server_has_an_unknown_outcome() {
        let error = Error::of_status("x", Status::resource_exhausted("SERVER: Sent message larger than max (9 vs. 4)"));
        assert_eq!(error.code(), Some(ErrorCode::MessageTooLarge));
        assert!(!error.is_retriable() && !error.is_definite());
    }
}
