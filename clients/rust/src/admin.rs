//! Topics and offsets.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use tonic::transport::Channel;

use crate::client::Client;
use crate::connections::{LARGEST_MESSAGE, answer, request, server_wait_ms};
use crate::error::{Error, Result};
use crate::v1::admin_service_client::AdminServiceClient;
use crate::v1::{self, ErrorCode, OffsetSpec};

/// A topic to create.
///
/// ```
/// # use paceline::NewTopic;
/// let topic = NewTopic::new("rides").partitions(3).replication_factor(3).config("min.insync.replicas", "2");
/// ```
#[derive(Clone, Debug, Default)]
pub struct NewTopic {
    name: String,
    partitions: Option<i32>,
    replication_factor: Option<i32>,
    configs: HashMap<String, String>,
}

impl NewTopic {
    /// Returns a topic with the cluster's default numbers of partitions and replicas.
    pub fn new(name: impl Into<String>) -> Self {
        NewTopic { name: name.into(), ..NewTopic::default() }
    }

    /// Sets the number of partitions.
    #[must_use]
    pub fn partitions(mut self, count: i32) -> Self {
        self.partitions = Some(count);
        self
    }

    /// Sets the number of replicas of each partition.
    #[must_use]
    pub fn replication_factor(mut self, factor: i32) -> Self {
        self.replication_factor = Some(factor);
        self
    }

    /// Sets a configuration entry, for example `min.insync.replicas`.
    #[must_use]
    pub fn config(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.configs.insert(key.into(), value.into());
        self
    }
}

/// A place in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The first offset still in the log.
    Earliest,
    /// The end of the committed records, exclusive.
    Latest,
    /// The first record at or after a time, in milliseconds since the Unix epoch.
    TimestampMs(i64),
}

impl Client {
    /// Creates a topic and returns its id when every partition has a leader.
    pub async fn create_topic(&self, topic: NewTopic) -> Result<String> {
        let operation = format!("creating topic {}", topic.name);
        let NewTopic { name, partitions, replication_factor, configs } = topic;
        let topic = v1::NewTopic { name, partitions, replication_factor, configs, ..Default::default() };
        let label = operation.clone();
        let call = move |mut admin: AdminServiceClient<Channel>, limit| {
            let (operation, topics) = (label.clone(), vec![topic.clone()]);
            async move {
                let message =
                    v1::CreateTopicsRequest { topics, timeout_ms: server_wait_ms(limit), ..Default::default() };
                let mut found = answer(&operation, limit, admin.create_topics(request(message, limit))).await?;
                match found.topics.pop() {
                    Some(v1::CreateTopicResult { error: Some(error), .. }) => Err(Error::of_topic(&operation, error)),
                    Some(created) => Ok(created.topic_id),
                    None => Err(Error::bad_answer(&operation, "the answer has no topic")),
                }
            }
        };
        self.on_controller(&operation, call).await
    }

    /// Deletes a topic and returns when its deletion is complete.
    pub async fn delete_topic(&self, name: &str) -> Result<()> {
        let operation = format!("deleting topic {name}");
        let (label, name) = (operation.clone(), name.to_owned());
        let call = move |mut admin: AdminServiceClient<Channel>, limit| {
            let (operation, topics) = (label.clone(), vec![name.clone()]);
            async move {
                let message = v1::DeleteTopicsRequest { topics, timeout_ms: server_wait_ms(limit) };
                let mut found = answer(&operation, limit, admin.delete_topics(request(message, limit))).await?;
                match found.topics.pop() {
                    Some(v1::DeleteTopicResult { error: Some(error), .. }) => Err(Error::of_topic(&operation, error)),
                    Some(_) => Ok(()),
                    None => Err(Error::bad_answer(&operation, "the answer has no topic")),
                }
            }
        };
        self.on_controller(&operation, call).await
    }

    /// Returns an offset of a partition; `None` when all records are older than the time of [`At::TimestampMs`].
    pub async fn list_offset(&self, topic: &str, partition: i32, at: At) -> Result<Option<i64>> {
        let mut retry = self.retry();
        loop {
            match self.list_offset_once(topic, partition, at, retry.attempt_limit()).await {
                Ok((offset, _)) => return Ok(offset),
                Err(failure) => retry.after(failure).await?,
            }
        }
    }

    /// Makes one attempt of `list_offset`. Also returns the topic id from the metadata of the partition.
    pub(crate) async fn list_offset_once(
        &self,
        topic: &str,
        partition: i32,
        at: At,
        limit: Duration,
    ) -> Result<(Option<i64>, String)> {
        let operation = format!("listing an offset of {topic}/{partition}");
        let leader = self.leader_of(topic, partition, limit).await?;
        let (spec, timestamp_ms) = match at {
            At::Earliest => (OffsetSpec::Earliest, 0),
            At::Latest => (OffsetSpec::Latest, 0),
            At::TimestampMs(timestamp_ms) => (OffsetSpec::Timestamp, timestamp_ms),
        };
        let message = v1::ListOffsetsRequest {
            partitions: vec![v1::ListOffsetsPartition {
                topic: topic.to_owned(),
                partition,
                spec: spec.into(),
                timestamp_ms,
                current_leader_epoch: Some(leader.epoch),
            }],
            ..Default::default()
        };
        let mut log = self.log_service(&leader.address)?;
        let result =
            answer(&operation, limit, log.list_offsets(request(message, limit))).await.and_then(|mut found| {
                let result = found
                    .partitions
                    .pop()
                    .ok_or_else(|| Error::bad_answer(&operation, "the answer has no partition"))?;
                result.error.map_or(Ok(result.offset), |error| Err(of_list_offsets(&operation, error)))
            });
        result
            .inspect_err(|failure| self.learn_from(failure, &leader.address, topic, partition))
            .map(|offset| (offset, leader.topic_id))
    }

    /// Runs an administrative call at the active controller, and follows the address in NOT_CONTROLLER. A call whose outcome
    /// is unknown is not retried, because the change may have been made.
    async fn on_controller<T, F>(
        &self,
        operation: &str,
        call: impl Fn(AdminServiceClient<Channel>, Duration) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut retry = self.retry();
        let mut controller: Option<String> = None;
        loop {
            let limit = retry.attempt_limit();
            let address = match controller.take() {
                Some(address) => Ok(address),
                None => self.find_controller(operation, limit).await,
            };
            let failure = match address {
                Err(mut failure) => {
                    // Only the controller was looked up, so no change was made.
                    if let Some(call) = failure.call_mut() {
                        call.definite = true;
                    }
                    failure
                }
                Ok(address) => {
                    let called = match self.channel(&address).map(AdminServiceClient::new) {
                        Ok(admin) => call(admin.max_decoding_message_size(LARGEST_MESSAGE), limit).await,
                        Err(failure) => Err(failure),
                    };
                    match called {
                        Ok(done) => return Ok(done),
                        Err(mut failure) => {
                            self.note_failure(&address, &failure);
                            if let Some(call) = failure.call_mut() {
                                controller = call.controller.take().or_else(|| (!call.refresh).then_some(address));
                                call.retriable = call.retriable && call.definite;
                            }
                            failure
                        }
                    }
                }
            };
            retry.after(failure).await?;
        }
    }
}

/// Returns the error of a partition. The request has no topic id, so the cached leader epoch may belong to a deleted topic of
/// the same name: after UNKNOWN_LEADER_EPOCH, the metadata is refreshed.
fn of_list_offsets(operation: &str, detail: v1::PartitionError) -> Error {
    let mut error = Error::of_partition(operation, detail);
    if let Some(call) = error.call_mut() {
        call.refresh |= call.code == ErrorCode::UnknownLeaderEpoch;
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_that_a_leader_does_not_know_makes_list_offsets_ask_for_the_leader_again() {
        for (code, refresh) in [(ErrorCode::UnknownLeaderEpoch, true), (ErrorCode::OffsetNotAvailable, false)] {
            let error = of_list_offsets("x", v1::PartitionError { code: code.into(), ..Default::default() });
            assert!(error.is_retriable() && error.is_definite());
            assert_eq!(error.call().unwrap().refresh, refresh, "{}", code.name());
        }
    }
}
