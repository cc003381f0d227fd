//! Finds the coordinator of a group and calls it.

use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;
use tonic::transport::Channel;

use crate::client::Client;
use crate::connections::{LARGEST_MESSAGE, answer, join_address, request};
use crate::error::{Error, Result};
use crate::v1::group_service_client::GroupServiceClient;
use crate::v1::{self, ErrorCode};

/// Timeout for one FindCoordinator, so that a broker that hangs does not use up the time of the whole call.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) type Stub = GroupServiceClient<Channel>;

#[derive(Debug)]
pub(crate) struct Coordinator {
    client: Client,
    group_id: String,
    address: Mutex<Option<String>>,
}

impl Coordinator {
    pub(crate) fn new(client: Client, group_id: String) -> Self {
        Coordinator { client, group_id, address: Mutex::default() }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Finds the coordinator if it is not known, and calls it once.
    pub(crate) async fn call<T, F>(&self, limit: Duration, call: impl FnOnce(Stub, Duration) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let begin = Instant::now();
        let known = self.address.lock().unwrap().clone();
        let address = match known {
            Some(address) => address,
            None => self.find(limit.min(self.client.request_timeout())).await.map_err(not_sent)?,
        };
        let stub = GroupServiceClient::new(self.client.channel(&address)?).max_decoding_message_size(LARGEST_MESSAGE);
        let left = limit.saturating_sub(begin.elapsed());
        call(stub, left).await.inspect_err(|failure| self.note_failure(&address, failure))
    }

    /// Repeats a call until it succeeds, fails with an error that is not retriable, or the timeout of the client ends; returns
    /// the last error. The error is definite only if no attempt can have been carried out.
    pub(crate) async fn repeat<T, F>(&self, call: impl Fn(Stub, Duration) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut retry = self.client.retry();
        let mut is_definite = true;
        loop {
            let mut failure = match self.call(retry.attempt_limit(), &call).await {
                Ok(found) => return Ok(found),
                Err(failure) => failure,
            };
            if let Some(call) = failure.call_mut() {
                is_definite &= call.definite;
                call.definite = is_definite;
            }
            retry.after(failure).await?;
        }
    }

    /// Forgets the coordinator when it has moved or cannot be reached.
    fn note_failure(&self, address: &str, failure: &Error) {
        self.client.note_failure(address, failure);
        if failure.call().is_some_and(|call| call.retriable && !is_still_there(call.code)) {
            *self.address.lock().unwrap() = None;
        }
    }

    async fn find(&self, limit: Duration) -> Result<String> {
        let operation = format!("finding the coordinator of group {}", self.group_id);
        let deadline = Instant::now() + limit;
        let mut last = Error::new(&operation, ErrorCode::CoordinatorNotAvailable, "no broker is known");
        for broker in self.client.find_brokers(limit).await? {
            let limit = deadline.saturating_duration_since(Instant::now()).min(ASK_TIMEOUT);
            if limit.is_zero() {
                break;
            }
            let question = v1::FindCoordinatorRequest { group_id: self.group_id.clone() };
            let mut stub = GroupServiceClient::new(self.client.channel(&broker)?);
            let found = answer(&operation, limit, stub.find_coordinator(request(question, limit))).await;
            last = match found.map(|found| join_address(&found.host, found.port)) {
                Ok(Some(address)) => {
                    *self.address.lock().unwrap() = Some(address.clone());
                    return Ok(address);
                }
                Ok(None) => Error::bad_answer(&operation, "the answer has no address"),
                // The error of a server is final: another broker would return the same error.
                Err(failure) if failure.call().is_some_and(|call| call.is_from_server()) => return Err(failure),
                Err(failure) => failure,
            };
            self.client.note_failure(&broker, &last);
        }
        Err(last)
    }
}

/// Marks a failed lookup as definite, because no request was sent to the coordinator.
fn not_sent(mut failure: Error) -> Error {
    if let Some(call) = failure.call_mut() {
        call.definite = true;
    }
    failure
}

fn is_still_there(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::CoordinatorLoadInProgress | ErrorCode::Throttled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ClientConfig;

    fn coordinator() -> Coordinator {
        let client = Client::new(ClientConfig::new(["127.0.0.1:1"]).timeout(Duration::from_millis(600))).unwrap();
        let coordinator = Coordinator::new(client, "g".to_owned());
        *coordinator.address.lock().unwrap() = Some("127.0.0.1:2".to_owned());
        coordinator
    }

    #[tokio::test]
    async fn a_coordinator_that_has_moved_is_forgotten_and_one_that_loads_is_not() {
        for (code, is_kept) in [
            (ErrorCode::NotCoordinator, false),
            (ErrorCode::CoordinatorNotAvailable, false),
            (ErrorCode::ShuttingDown, false),
            (ErrorCode::RequestTimedOut, false),
            (ErrorCode::BrokerNotAvailable, false),
            (ErrorCode::CoordinatorLoadInProgress, true),
            (ErrorCode::Throttled, true),
            (ErrorCode::UnknownMemberId, true),
            (ErrorCode::RebalanceInProgress, true),
        ] {
            let coordinator = coordinator();
            coordinator.note_failure("127.0.0.1:2", &Error::new("x", code, "no"));
            assert_eq!(coordinator.address.lock().unwrap().is_some(), is_kept, "{}", code.name());
        }
    }

    #[tokio::test]
    async fn a_refusal_after_an_attempt_without_an_answer_is_not_definite() {
        for (first, definite) in [(ErrorCode::RequestTimedOut, false), (ErrorCode::CoordinatorLoadInProgress, true)] {
            let coordinator = coordinator();
            let codes = std::sync::Mutex::new(vec![ErrorCode::IllegalGeneration, first]);
            let failure = coordinator
                .repeat::<(), _>(|_, _| {
                    let code = codes.lock().unwrap().pop().unwrap();
                    async move { Err(Error::new("x", code, "no")) }
                })
                .await
                .unwrap_err();
            assert_eq!(failure.is_definite(), definite, "{}", first.name());
        }
    }

    #[tokio::test]
    async fn the_search_for_a_coordinator_ends_with_the_last_cause() {
        let coordinator = coordinator();
        *coordinator.address.lock().unwrap() = None;
        let failure = coordinator.repeat(|_, _| async { Ok(()) }).await.unwrap_err();
        assert!(failure.to_string().contains("refused"), "{failure}");
    }
}
