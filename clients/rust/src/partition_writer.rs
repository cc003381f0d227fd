//! Delivers the records of one partition, one batch at a time. Each writer has a producer id of its own, so that an unknown
//! outcome in one partition does not affect the sequence numbers of the others.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::client::Client;
use crate::connections::{answer, request, server_wait_ms};
use crate::error::{Error, Result};
use crate::metadata::Leader;
use crate::producer::{ProducerConfig, Sticky};
use crate::record::{Placed, Record};
use crate::retry::{MISSING_LIMIT, Retry, missing_since};
use crate::v1::produce_partition::Data;
use crate::v1::{self, Acks, ErrorCode, RecordList};

/// A batch of unknown outcome fails after this many attempts for which the metadata had another topic id.
const OTHER_TOPIC_LIMIT: u32 = 5;

/// A command of a producer to a writer.
#[derive(Debug)]
pub(crate) enum Command {
    Write(Item),
    /// Reply when every earlier record has its outcome.
    Flush(oneshot::Sender<()>),
}

/// A record without an outcome.
#[derive(Debug)]
pub(crate) struct Item {
    record: v1::Record,
    size_bytes: usize,
    partition: i32,
    sent: Instant,
    deadline: Instant,
    outcome: oneshot::Sender<Result<Placed>>,
    _permit: OwnedSemaphorePermit,
}

impl Item {
    pub(crate) fn new(
        record: Record,
        partition: i32,
        deadline: Instant,
        outcome: oneshot::Sender<Result<Placed>>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
        let size_bytes = record.size_bytes();
        let record = record.into_v1(now_ms);
        Item { record, size_bytes, partition, sent: Instant::now(), deadline, outcome, _permit: permit }
    }

    fn finish(self, outcome: Result<i64>) {
        let partition = self.partition;
        // The program may have dropped the delivery.
        let _ = self.outcome.send(outcome.map(|offset| Placed { partition, offset }));
    }
}

/// Collects the queued records into batches.
#[derive(Debug)]
pub(crate) struct Batches {
    commands: mpsc::UnboundedReceiver<Command>,
    linger: Duration,
    limit_bytes: usize,
    /// The record that did not fit into the previous batch and begins the next one.
    next: Option<Item>,
    flushes: Vec<oneshot::Sender<()>>,
}

impl Batches {
    pub(crate) fn new(commands: mpsc::UnboundedReceiver<Command>, linger: Duration, limit_bytes: usize) -> Self {
        Batches { commands, linger, limit_bytes, next: None, flushes: Vec::new() }
    }

    /// Returns the next batch, or None when the producer has no more commands. Call it when the previous batch has its outcome:
    /// it answers the flushes that waited for that batch.
    ///
    /// A batch has at most `limit_bytes`, unless it is a single record. It is returned `linger` after its first record was
    /// queued, or at once if it is full or a flush waits.
    async fn take(&mut self) -> Option<Vec<Item>> {
        for flushed in self.flushes.drain(..) {
            let _ = flushed.send(());
        }
        let first = match self.next.take() {
            Some(item) => item,
            None => loop {
                match self.commands.recv().await? {
                    Command::Write(item) => break item,
                    Command::Flush(flushed) => drop(flushed.send(())),
                }
            },
        };
        let send_at = first.sent + self.linger;
        let mut size_bytes = first.size_bytes;
        let mut batch = vec![first];
        while size_bytes < self.limit_bytes && self.flushes.is_empty() {
            let command = match self.commands.try_recv() {
                Ok(command) => Some(command),
                Err(mpsc::error::TryRecvError::Empty) if Instant::now() < send_at => {
                    timeout_at(send_at, self.commands.recv()).await.ok().flatten()
                }
                Err(_) => None,
            };
            match command {
                None => break,
                Some(Command::Flush(flushed)) => self.flushes.push(flushed),
                Some(Command::Write(item)) if size_bytes + item.size_bytes > self.limit_bytes => {
                    self.next = Some(item);
                    break;
                }
                Some(Command::Write(item)) => {
                    size_bytes += item.size_bytes;
                    batch.push(item);
                }
            }
        }
        Some(batch)
    }
}

pub(crate) struct PartitionWriter {
    client: Client,
    sticky: Arc<Sticky>,
    topic: String,
    partition: i32,
    batches: Batches,
    producer: Option<ProducerId>,
    /// Since when brokers have not known the partition.
    unknown_since: Option<Instant>,
}

/// The results of a batch's earlier attempts.
#[derive(Debug, Default)]
struct Progress {
    /// Whether the broker may have appended the batch.
    unknown: bool,
    /// Number of attempts since then for which the metadata had another topic of the same name.
    other_topic: u32,
}

/// The producer id, epoch and first sequence number of the next batch.
#[derive(Clone, Debug)]
struct ProducerId {
    id: i64,
    epoch: i32,
    next_sequence: i32,
    /// The topic that the sequence belongs to.
    topic_id: String,
}

impl PartitionWriter {
    pub(crate) fn new(
        client: &Client,
        config: &ProducerConfig,
        sticky: Arc<Sticky>,
        topic: &str,
        partition: i32,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        PartitionWriter {
            client: client.clone(),
            sticky,
            topic: topic.to_owned(),
            partition,
            batches: Batches::new(commands, config.linger, config.batch_bytes),
            producer: None,
            unknown_since: None,
        }
    }

    pub(crate) async fn run(mut self) {
        while let Some(batch) = self.batches.take().await {
            // Records without a key go to another partition from now on.
            self.sticky.leave(&self.topic, self.partition);
            let mut parts = vec![batch];
            while let Some(mut batch) = parts.pop() {
                let outcome = self.deliver(&batch).await;
                if batch.len() > 1 && outcome.as_ref().is_err_and(is_too_large) {
                    // The limit of the topic is below the batch size of this producer: send the batch in halves.
                    let second = batch.split_off(batch.len() / 2);
                    parts.extend([second, batch]);
                    continue;
                }
                for (position, item) in batch.into_iter().enumerate() {
                    item.finish(outcome.clone().map(|base| base + position as i64));
                }
            }
        }
    }

    /// Appends a batch and returns its first offset. Repeats the same records with the same sequence numbers until the delivery
    /// timeout of the oldest record, so that the broker recognizes a batch that it has already appended. Fails earlier when
    /// brokers have not known the partition for `MISSING_LIMIT` since the oldest record was sent.
    async fn deliver(&mut self, batch: &[Item]) -> Result<i64> {
        let mut retry = Retry::until(batch[0].deadline, self.client.request_timeout());
        let mut list =
            RecordList { records: batch.iter().map(|item| item.record.clone()).collect(), ..Default::default() };
        let mut progress = Progress::default();
        let mut failure = if retry.remaining().is_zero() {
            let message = "the delivery timeout ended while the record waited for earlier batches";
            Error::new(&self.operation(), ErrorCode::RequestTimedOut, message)
        } else {
            loop {
                let (limit, operation) = (retry.attempt_limit(), self.operation());
                let failure = match retry.attempt(&operation, self.attempt(&mut list, &mut progress, limit)).await {
                    Ok(base) => {
                        self.unknown_since = None;
                        if let Some(producer) = &mut self.producer {
                            producer.next_sequence = sequence_after(producer.next_sequence, batch.len());
                        }
                        return Ok(base);
                    }
                    Err(failure) => failure,
                };
                if self.is_missing(&failure, batch[0].sent) {
                    break failure;
                }
                if let Err(last) = retry.after(failure).await {
                    break last;
                }
            }
        };
        let refused = [ErrorCode::OutOfOrderSequenceNumber, ErrorCode::InvalidProducerEpoch];
        if progress.unknown || failure.code().is_some_and(|code| refused.contains(&code)) {
            // The broker may or may not have used the sequence numbers, or it refuses this producer id: get a new id.
            self.producer = None;
        }
        if let Some(call) = failure.call_mut() {
            call.definite = !progress.unknown;
        }
        Err(failure)
    }

    /// Returns whether the partition counts as missing for a record that was sent at `sent`, after another failure.
    fn is_missing(&mut self, failure: &Error, sent: Instant) -> bool {
        let now = Instant::now();
        self.unknown_since = failure.call().and_then(|call| missing_since(self.unknown_since, call, now));
        failure.is_missing() && self.unknown_since.is_some_and(|since| now - since.max(sent) >= MISSING_LIMIT)
    }

    async fn attempt(&mut self, list: &mut RecordList, progress: &mut Progress, limit: Duration) -> Result<i64> {
        let begin = Instant::now();
        let leader = self.client.leader_of(&self.topic, self.partition, limit).await?;
        if progress.unknown && self.producer.as_ref().is_some_and(|producer| producer.topic_id != leader.topic_id) {
            let failure = self.other_topic(progress);
            self.client.learn_from(&failure, &leader.address, &self.topic, self.partition);
            return Err(failure);
        }
        let producer = self.identify(&leader, limit.saturating_sub(begin.elapsed())).await?;
        list.producer_id = Some(producer.id);
        list.producer_epoch = Some(producer.epoch);
        list.base_sequence = Some(producer.next_sequence);
        let outcome = self.append(list.clone(), &leader, limit.saturating_sub(begin.elapsed())).await;
        outcome.inspect_err(|failure| {
            progress.unknown |= !failure.is_definite();
            self.client.learn_from(failure, &leader.address, &self.topic, self.partition);
        })
    }

    /// Returns the failure of a batch of unknown outcome when the metadata has another topic than the attempts before. It is
    /// final only after `OTHER_TOPIC_LIMIT` attempts, because a cut-off broker may still describe a deleted topic.
    fn other_topic(&self, progress: &mut Progress) -> Error {
        progress.other_topic += 1;
        let code = ErrorCode::UnknownTopicOrPartition;
        let mut failure = Error::new(&self.operation(), code, "the topic was deleted and created again");
        if let Some(call) = failure.call_mut() {
            call.retriable = progress.other_topic < OTHER_TOPIC_LIMIT;
        }
        failure
    }

    /// Returns the producer id, epoch and first sequence number of the batch. Requests a new id if there is none, or if the
    /// topic was deleted and created again.
    async fn identify(&mut self, leader: &Leader, limit: Duration) -> Result<ProducerId> {
        if let Some(producer) = self.producer.as_ref().filter(|producer| producer.topic_id == leader.topic_id) {
            return Ok(producer.clone());
        }
        let mut log = self.client.log_service(&leader.address)?;
        let call = log.init_producer_id(request(v1::InitProducerIdRequest {}, limit));
        let answer = answer("asking for a producer id", limit, call)
            .await
            .inspect_err(|failure| self.client.learn_from(failure, &leader.address, &self.topic, self.partition))?;
        Ok(self
            .producer
            .insert(ProducerId {
                id: answer.producer_id,
                epoch: answer.producer_epoch,
                next_sequence: 0,
                topic_id: leader.topic_id.clone(),
            })
            .clone())
    }

    async fn append(&self, list: RecordList, leader: &Leader, limit: Duration) -> Result<i64> {
        let operation = self.operation();
        let message = v1::ProduceRequest {
            acks: Acks::All.into(),
            timeout_ms: server_wait_ms(limit),
            partitions: vec![v1::ProducePartition {
                topic: self.topic.clone(),
                partition: self.partition,
                topic_id: leader.topic_id.clone(),
                current_leader_epoch: Some(leader.epoch),
                data: Some(Data::Records(list)),
            }],
        };
        let mut log = self.client.log_service(&leader.address)?;
        let mut found = answer(&operation, limit, log.produce(request(message, limit))).await?;
        let result =
            found.partitions.pop().ok_or_else(|| Error::bad_answer(&operation, "the answer has no partition"))?;
        result.error.map_or(Ok(result.base_offset), |error| Err(Error::of_partition(&operation, error)))
    }

    fn operation(&self) -> String {
        format!("producing to {}/{}", self.topic, self.partition)
    }
}

/// Returns whether a batch was certainly not appended because it is too large.
fn is_too_large(failure: &Error) -> bool {
    failure.code() == Some(ErrorCode::MessageTooLarge) && failure.is_definite()
}

/// Returns the sequence number after `count` records; 0 follows the largest.
fn sequence_after(sequence: i32, count: usize) -> i32 {
    ((sequence as i64 + count as i64) % (i64::from(i32::MAX) + 1)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientConfig;
    use tokio::sync::Semaphore;

    struct Queue {
        sender: mpsc::UnboundedSender<Command>,
        pending: Arc<Semaphore>,
    }

    impl Queue {
        /// A record of a key takes 32 bytes more than the key.
        fn write(&self, size_bytes: usize) {
            let record = Record::new("t").key(vec![0; size_bytes - 32]);
            let permit = Arc::clone(&self.pending).try_acquire_owned().unwrap();
            let (outcome, _) = oneshot::channel();
            let item = Item::new(record, 0, Instant::now() + Duration::from_secs(60), outcome, permit);
            self.sender.send(Command::Write(item)).unwrap();
        }

        fn flush(&self) -> oneshot::Receiver<()> {
            let (flushed, receiver) = oneshot::channel();
            self.sender.send(Command::Flush(flushed)).unwrap();
            receiver
        }
    }

    fn queue(linger_ms: u64, limit_bytes: usize) -> (Queue, Batches) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let queue = Queue { sender, pending: Arc::new(Semaphore::new(100)) };
        (queue, Batches::new(receiver, Duration::from_millis(linger_ms), limit_bytes))
    }

    async fn take(batches: &mut Batches) -> usize {
        batches.take().await.expect("a batch").len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_lingers_from_its_first_record_on() {
        let (queue, mut batches) = queue(50, 1 << 20);
        let begin = Instant::now();
        queue.write(100);
        let taken = tokio::spawn(async move { (take(&mut batches).await, batches) });
        tokio::time::sleep(Duration::from_millis(30)).await;
        queue.write(100);
        let (count, mut batches) = taken.await.unwrap();
        assert_eq!((count, begin.elapsed().as_millis()), (2, 50));
        // Records that waited longer than the linger time during a delivery leave at once.
        queue.write(100);
        queue.write(100);
        tokio::time::sleep(Duration::from_millis(80)).await;
        assert_eq!((take(&mut batches).await, begin.elapsed().as_millis()), (2, 130));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_batch_does_not_linger() {
        let (queue, mut batches) = queue(60_000, 300);
        let begin = Instant::now();
        for _ in 0..7 {
            queue.write(100);
        }
        queue.write(1_000);
        assert_eq!([take(&mut batches).await, take(&mut batches).await], [3, 3]);
        // The large record does not fit beside the seventh, and is a batch of its own.
        assert_eq!([take(&mut batches).await, take(&mut batches).await], [1, 1]);
        assert_eq!(begin.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn without_linger_a_batch_has_what_gathered() {
        let (queue, mut batches) = queue(0, 1 << 20);
        for _ in 0..5 {
            queue.write(100);
        }
        assert_eq!(take(&mut batches).await, 5);
        queue.write(100);
        assert_eq!(take(&mut batches).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_ends_the_linger_time_and_is_answered_after_the_batch() {
        let (queue, mut batches) = queue(60_000, 1 << 20);
        let begin = Instant::now();
        queue.write(100);
        let mut flushed = queue.flush();
        queue.write(100);
        assert_eq!((take(&mut batches).await, begin.elapsed()), (1, Duration::ZERO));
        assert!(flushed.try_recv().is_err(), "the batch has no outcome yet");
        let next = tokio::spawn(async move { take(&mut batches).await });
        flushed.await.unwrap();
        drop(queue);
        assert_eq!(next.await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn commands_end_after_the_last_batch() {
        let (queue, mut batches) = queue(60_000, 1 << 20);
        queue.write(100);
        drop(queue);
        assert_eq!(take(&mut batches).await, 1);
        assert!(batches.take().await.is_none());
    }

    #[tokio::test]
    async fn a_batch_that_may_be_in_a_deleted_topic_is_given_up_when_brokers_agree_on_the_new_one() {
        let client = Client::new(ClientConfig::new(["127.0.0.1:1"])).unwrap();
        let partition = v1::PartitionDescription { leader: Some(1), ..Default::default() };
        let (name, topic_id) = ("t".to_owned(), "new".to_owned());
        let topic = v1::TopicDescription { name, topic_id, partitions: vec![partition], ..Default::default() };
        let broker = v1::BrokerInfo { id: 1, host: "127.0.0.1".to_owned(), port: 1, ..Default::default() };
        let cluster = v1::DescribeClusterResponse { brokers: vec![broker], ..Default::default() };
        let config = ProducerConfig::default();
        let (_commands, receiver) = mpsc::unbounded_channel();
        let mut writer = PartitionWriter::new(&client, &config, Arc::default(), "t", 0, receiver);
        writer.producer = Some(ProducerId { id: 7, epoch: 0, next_sequence: 3, topic_id: "old".to_owned() });
        let mut progress = Progress { unknown: true, ..Progress::default() };
        for left in (0..OTHER_TOPIC_LIMIT).rev() {
            client.metadata(|metadata| {
                metadata.set_cluster(&cluster);
                metadata.set_topic(&topic, Instant::now());
            });
            let mut list = RecordList::default();
            let failure = writer.attempt(&mut list, &mut progress, Duration::from_secs(1)).await.unwrap_err();
            assert!(failure.to_string().contains("created again"), "{failure}");
            assert_eq!(failure.is_retriable(), left > 0);
            assert_eq!(client.known_leader("t", 0), None, "the next attempt asks again");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_is_missing_when_brokers_have_not_known_it_since_the_record_was_sent() {
        let client = Client::new(ClientConfig::new(["127.0.0.1:1"])).unwrap();
        let (_commands, receiver) = mpsc::unbounded_channel();
        let mut writer = PartitionWriter::new(&client, &ProducerConfig::default(), Arc::default(), "t", 0, receiver);
        let missing = Error::missing("x", "no".to_owned());
        let first = Instant::now();
        assert!(!writer.is_missing(&missing, first));
        tokio::time::advance(MISSING_LIMIT).await;
        assert!(writer.is_missing(&missing, first));
        assert!(!writer.is_missing(&missing, Instant::now()), "the topic may be new by now");
        assert!(!writer.is_missing(&Error::timed_out("x", MISSING_LIMIT), first), "no broker says so");
        assert!(!writer.is_missing(&Error::new("x", ErrorCode::LeaderNotAvailable, "no"), first));
        assert!(!writer.is_missing(&missing, first), "a broker knew it meanwhile");
    }

    #[test]
    fn a_batch_is_divided_only_when_it_was_surely_refused_for_its_size() {
        let mut failure = Error::new("x", ErrorCode::MessageTooLarge, "no");
        assert!(is_too_large(&failure) && !is_too_large(&Error::new("x", ErrorCode::InvalidRecord, "no")));
        failure.call_mut().unwrap().definite = false;
        assert!(!is_too_large(&failure));
    }

    #[test]
    fn sequence_numbers_wrap_to_zero() {
        assert_eq!(sequence_after(i32::MAX, 1), 0);
        assert_eq!(sequence_after(i32::MAX - 7, 10), 2);
        assert_eq!(sequence_after(5, 3), 8);
    }
}
