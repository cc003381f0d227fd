//! The producer: chooses partitions, bounds memory, and hands records to one writer per partition.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::Client;
use crate::config::LONGEST;
use crate::error::{Error, Result};
use crate::partition_writer::{Command, Item, PartitionWriter};
use crate::partitioner::partition_for_key;
use crate::record::{Placed, Record};

/// Settings of a producer.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// Maximum time from `send` to the outcome of the record, retries included; 2 minutes by default.
    pub delivery_timeout: Duration,
    /// Time that a batch waits for further records; 0 by default: a batch then has the records that were queued during the
    /// delivery of the previous batch.
    pub linger: Duration,
    /// Size from which a batch is sent; 256 KiB by default.
    pub batch_bytes: usize,
    /// Number of records without an outcome at which `send` waits; 100,000 by default.
    pub max_pending: usize,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        ProducerConfig {
            delivery_timeout: Duration::from_secs(120),
            linger: Duration::ZERO,
            batch_bytes: 256 << 10,
            max_pending: 100_000,
        }
    }
}

/// Sends records with acks=all and idempotence: each record once, in the order of the calls per partition.
///
/// Use [`Producer::close`] at the end. After a drop without `close`, records that were sent before are still delivered as
/// long as the runtime lives.
#[derive(Debug)]
pub struct Producer {
    client: Client,
    config: ProducerConfig,
    pending: Arc<Semaphore>,
    sticky: Arc<Sticky>,
    /// None once the producer is closed.
    writers: Mutex<Option<Writers>>,
}

type Writers = HashMap<String, HashMap<i32, Writer>>;

#[derive(Debug)]
struct Writer {
    commands: mpsc::UnboundedSender<Command>,
    task: JoinHandle<()>,
}

/// A future with the partition and offset of a sent record. Dropping it does not cancel the record.
#[derive(Debug)]
#[must_use = "the record may fail: await its delivery"]
pub struct Delivery(oneshot::Receiver<Result<Placed>>);

impl Future for Delivery {
    type Output = Result<Placed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|outcome| outcome.unwrap_or(Err(Error::Closed)))
    }
}

/// By topic, the partition that gets records without a key until a batch of the partition is sent.
#[derive(Debug, Default)]
pub(crate) struct Sticky(Mutex<HashMap<String, i32>>);

impl Sticky {
    fn choose(&self, topic: &str, count: i32) -> i32 {
        let mut partitions = self.0.lock().unwrap();
        match partitions.get(topic) {
            Some(partition) if *partition < count => *partition,
            _ => {
                let partition = fastrand::i32(0..count);
                partitions.insert(topic.to_owned(), partition);
                partition
            }
        }
    }

    pub(crate) fn leave(&self, topic: &str, partition: i32) {
        let mut partitions = self.0.lock().unwrap();
        if partitions.get(topic) == Some(&partition) {
            partitions.remove(topic);
        }
    }
}

impl Client {
    /// Returns a producer.
    pub fn producer(&self, mut config: ProducerConfig) -> Producer {
        config.delivery_timeout = config.delivery_timeout.min(LONGEST);
        config.linger = config.linger.min(LONGEST);
        Producer {
            client: self.clone(),
            pending: Arc::new(Semaphore::new(config.max_pending.clamp(1, Semaphore::MAX_PERMITS))),
            sticky: Arc::default(),
            writers: Mutex::new(Some(Writers::new())),
            config,
        }
    }
}

impl Producer {
    /// Queues a record and returns its delivery. Waits while `max_pending` records have no outcome, and on the first use of
    /// a topic for its metadata. If the future is dropped before it is ready, the record is not sent.
    ///
    /// Call `send` for many records before you await their deliveries; otherwise each batch has a single record.
    ///
    /// # Errors
    ///
    /// The record was not sent after an error: [`Error::Closed`]; for a record without a partition,
    /// `UNKNOWN_TOPIC_OR_PARTITION` when brokers have not known its topic for 5 s, and the last failure when its partitions
    /// were not found within the timeout of the client. The delivery of a record with a partition fails alike.
    pub async fn send(&self, record: Record) -> Result<Delivery> {
        let partition = match record.partition {
            Some(partition) => partition,
            None => {
                let count = self.client.partition_count(&record.topic).await.map_err(unsent)?;
                self.choose(&record, count)?
            }
        };
        let permit = Arc::clone(&self.pending).acquire_owned().await.map_err(|_| Error::Closed)?;
        let (outcome, delivery) = oneshot::channel();
        let topic = record.topic.clone();
        let item = Item::new(record, partition, Instant::now() + self.config.delivery_timeout, outcome, permit);
        self.command(&topic, partition, Command::Write(item))?;
        Ok(Delivery(delivery))
    }

    /// Waits until every record sent so far has its outcome. Batches are sent without lingering meanwhile.
    pub async fn flush(&self) {
        let mut reached = Vec::new();
        if let Some(writers) = &*self.writers.lock().unwrap() {
            for writer in writers.values().flat_map(HashMap::values) {
                let (flushed, receiver) = oneshot::channel();
                if writer.commands.send(Command::Flush(flushed)).is_ok() {
                    reached.push(receiver);
                }
            }
        }
        for receiver in reached {
            // A writer that ended has nothing left to deliver.
            let _ = receiver.await;
        }
    }

    /// Flushes and ends the producer. Records without an outcome after `limit` fail with [`Error::Closed`]; it is
    /// unknown whether they were written.
    pub async fn close(self, limit: Duration) {
        self.pending.close();
        let _ = tokio::time::timeout(limit, self.flush()).await;
        for writer in self.writers.lock().unwrap().take().into_iter().flatten().flat_map(|(_, writers)| writers) {
            writer.1.task.abort();
        }
    }

    fn choose(&self, record: &Record, count: i32) -> Result<i32> {
        if count <= 0 {
            return Err(Error::InvalidArgument(format!("the topic {} has no partitions", record.topic)));
        }
        Ok(match &record.key {
            Some(key) => partition_for_key(key, count),
            None => self.sticky.choose(&record.topic, count),
        })
    }

    fn command(&self, topic: &str, partition: i32, command: Command) -> Result<()> {
        let mut writers = self.writers.lock().unwrap();
        let writers = writers.as_mut().ok_or(Error::Closed)?;
        let found = writers.get(topic).and_then(|of_topic| of_topic.get(&partition));
        let commands = match found {
            Some(writer) => writer.commands.clone(),
            None => {
                let (commands, receiver) = mpsc::unbounded_channel();
                let writer = PartitionWriter::new(
                    &self.client,
                    &self.config,
                    Arc::clone(&self.sticky),
                    topic,
                    partition,
                    receiver,
                );
                let task = tokio::spawn(writer.run());
                let writer = Writer { commands: commands.clone(), task };
                writers.entry(topic.to_owned()).or_default().insert(partition, writer);
                commands
            }
        };
        commands.send(command).map_err(|_| Error::Closed)
    }
}

/// Returns the failure of a look-up as that of a record that was not sent.
fn unsent(mut failure: Error) -> Error {
    if let Some(call) = failure.call_mut() {
        call.definite = true;
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_without_a_key_stay_with_a_partition_until_its_batch_is_sent() {
        let sticky = Sticky::default();
        let first = sticky.choose("t", 1_000_000);
        assert_eq!(sticky.choose("t", 1_000_000), first);
        sticky.leave("t", first + 1);
        assert_eq!(sticky.choose("t", 1_000_000), first);
        sticky.leave("t", first);
        assert_ne!(sticky.choose("t", 1_000_000), first);
    }

    #[test]
    fn the_chosen_partition_exists_after_a_topic_got_fewer_partitions() {
        let sticky = Sticky::default();
        sticky.choose("t", 1_000);
        assert_eq!(sticky.choose("t", 1), 0);
    }
}
