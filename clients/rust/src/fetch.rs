//! One fetch from one leader.

use crate::client::Client;
use crate::connections::{answer, request};
use crate::consumer::{ConsumerConfig, TopicPartition};
use crate::error::{Error, Result};
use crate::metadata::Leader;
use crate::position::Position;
use crate::v1::{self, FetchFormat, FetchPartitionResult};

/// A partition of a fetch request, with its position at the time of the request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) at: TopicPartition,
    pub(crate) assignment: u64,
    pub(crate) leader_epoch: i32,
    pub(crate) topic_id: String,
    offset: i64,
    last_epoch: Option<i32>,
}

/// The result of a fetch for one partition.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) asked: Asked,
    pub(crate) outcome: Result<FetchPartitionResult>,
}

impl Asked {
    pub(crate) fn new(at: TopicPartition, position: &Position, leader: Leader) -> Self {
        Asked {
            at,
            assignment: position.assignment(),
            leader_epoch: leader.epoch,
            topic_id: leader.topic_id,
            offset: position.next(),
            last_epoch: position.epoch(),
        }
    }

    pub(crate) fn operation(&self) -> String {
        format!("reading {}/{} from offset {}", self.at.0, self.at.1, self.offset)
    }

    fn to_v1(&self, max_bytes: i32) -> v1::FetchPartition {
        v1::FetchPartition {
            topic: self.at.0.clone(),
            partition: self.at.1,
            topic_id: self.topic_id.clone(),
            fetch_offset: self.offset,
            max_bytes,
            current_leader_epoch: Some(self.leader_epoch),
            last_fetched_epoch: self.last_epoch,
        }
    }
}

/// Fetches records from a leader. A failure updates the cached leader of its partition.
pub(crate) async fn fetch(client: &Client, config: &ConsumerConfig, address: &str, asked: Vec<Asked>) -> Vec<Fetched> {
    let outcomes = call(client, config, address, &asked).await;
    let fetched = match outcomes {
        Ok(results) => asked
            .into_iter()
            .zip(results)
            .map(|(asked, mut result)| {
                let outcome = match result.error.take() {
                    Some(error) => Err(Error::of_partition(&asked.operation(), error)),
                    None => Ok(result),
                };
                Fetched { asked, outcome }
            })
            .collect(),
        Err(failure) => {
            asked.into_iter().map(|asked| Fetched { asked, outcome: Err(failure.clone()) }).collect::<Vec<_>>()
        }
    };
    for Fetched { asked, outcome } in &fetched {
        if let Err(failure) = outcome {
            client.learn_from(failure, address, &asked.at.0, asked.at.1);
        }
    }
    fetched
}

async fn call(
    client: &Client,
    config: &ConsumerConfig,
    address: &str,
    asked: &[Asked],
) -> Result<Vec<FetchPartitionResult>> {
    let operation = asked.first().map(Asked::operation).unwrap_or_default();
    let message = v1::FetchRequest {
        max_wait_ms: i32::try_from(config.max_wait.as_millis()).unwrap_or(i32::MAX),
        min_bytes: 1,
        max_bytes: config.max_bytes,
        format: FetchFormat::Records.into(),
        partitions: asked.iter().map(|asked| asked.to_v1(config.max_bytes)).collect(),
        ..Default::default()
    };
    let limit = config.max_wait + client.request_timeout();
    let mut log = client.log_service(address)?;
    let results = answer(&operation, limit, log.fetch(request(message, limit))).await?.partitions;
    let in_order =
        |result: &FetchPartitionResult, asked: &Asked| result.topic == asked.at.0 && result.partition == asked.at.1;
    if results.len() != asked.len() || !results.iter().zip(asked).all(|(result, asked)| in_order(result, asked)) {
        return Err(Error::bad_answer(&operation, "the partitions of the answer differ from those of the request"));
    }
    Ok(results)
}
