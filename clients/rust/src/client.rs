//! The client of a cluster: connections, cached metadata, and the lookups of brokers, leaders and controller.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use tonic::transport::Channel;

use crate::config::{ClientConfig, LONGEST};
use crate::connections::{Connections, LARGEST_MESSAGE, answer, request};
use crate::error::{Error, Result};
use crate::groups::shape_of;
use crate::metadata::{Leader, Lookup, Metadata, controller_address};
use crate::retry::{MISSING_LIMIT, Retry, missing_since};
use crate::v1::log_service_client::LogServiceClient;
use crate::v1::metadata_service_client::MetadataServiceClient;
use crate::v1::{self, ErrorCode};

/// Timeout of a metadata request, so that an unresponsive process does not use up the time of a call.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of further metadata requests after the first answer.
const ASK_AGAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A client of one cluster. Clones are cheap and share connections and metadata.
///
/// Every method that calls the cluster retries until the timeout of the client, and fails with the last cause. Dropping the
/// future of a call cancels the call.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
    timeout: Duration,
}

#[derive(Debug)]
struct Shared {
    bootstrap: Vec<String>,
    request_timeout: Duration,
    connections: Connections,
    metadata: Mutex<Metadata>,
}

impl Client {
    /// Returns a client; it connects with the first call.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when an address or a TLS file cannot be used.
    pub fn new(config: ClientConfig) -> Result<Self> {
        config.check()?;
        Ok(Client {
            timeout: config.timeout.min(LONGEST),
            shared: Arc::new(Shared {
                connections: Connections::new(&config),
                bootstrap: config.bootstrap,
                request_timeout: config.request_timeout.min(LONGEST),
                metadata: Mutex::default(),
            }),
        })
    }

    /// Returns the same client with another timeout for its calls.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Client { shared: Arc::clone(&self.shared), timeout: timeout.min(LONGEST) }
    }

    /// Returns the brokers and the active controller.
    pub async fn describe_cluster(&self) -> Result<v1::DescribeClusterResponse> {
        let mut retry = self.retry();
        loop {
            match self.describe_cluster_once(retry.attempt_limit()).await {
                Ok(cluster) => return Ok(cluster),
                Err(failure) => retry.after(failure).await?,
            }
        }
    }

    /// Returns partitions, leaders, replicas and in-sync replicas of a topic.
    ///
    /// # Errors
    ///
    /// `UNKNOWN_TOPIC_OR_PARTITION` when brokers have not known the topic for 5 s.
    pub async fn describe_topic(&self, topic: &str) -> Result<v1::TopicDescription> {
        self.find_topic(topic, 0).await
    }

    /// Returns the description of a topic that has at least `least` partitions, with retries.
    async fn find_topic(&self, topic: &str, least: usize) -> Result<v1::TopicDescription> {
        let operation = format!("describing topic {topic}");
        let mut retry = self.retry();
        let mut unknown_since = None;
        loop {
            let limit = retry.attempt_limit();
            let failure = match retry.attempt(&operation, self.refresh(topic, limit)).await {
                Ok(description) if description.partitions.len() >= least => return Ok(description),
                Ok(_) => Error::new(&operation, ErrorCode::LeaderNotAvailable, "the topic has no partitions yet"),
                Err(failure) => failure,
            };
            unknown_since = failure.call().and_then(|call| missing_since(unknown_since, call, Instant::now()));
            if failure.is_missing() && unknown_since.is_some_and(|since| since.elapsed() >= MISSING_LIMIT) {
                return Err(failure);
            }
            retry.after(failure).await?;
        }
    }

    pub(crate) fn retry(&self) -> Retry {
        Retry::until(Instant::now() + self.timeout, self.shared.request_timeout)
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.shared.request_timeout
    }

    pub(crate) fn channel(&self, address: &str) -> Result<Channel> {
        self.shared.connections.channel(address)
    }

    pub(crate) fn log_service(&self, address: &str) -> Result<LogServiceClient<Channel>> {
        let channel = self.channel(address)?;
        Ok(LogServiceClient::new(channel)
            .max_decoding_message_size(LARGEST_MESSAGE)
            .max_encoding_message_size(LARGEST_MESSAGE))
    }

    pub(crate) fn metadata<T>(&self, with: impl FnOnce(&mut Metadata) -> T) -> T {
        with(&mut self.shared.metadata.lock().unwrap())
    }

    /// Drops the connection to an address if the failure shows that no Paceline process answered there.
    pub(crate) fn note_failure(&self, address: &str, failure: &Error) {
        if failure.call().is_some_and(|call| call.code == ErrorCode::BrokerNotAvailable && !call.is_from_server()) {
            self.shared.connections.forget(address);
        }
    }

    /// Asks the known addresses in random order until a process answers; fails with the last failure if no process answers.
    pub(crate) async fn ask_any<T, F>(&self, limit: Duration, ask: impl FnMut(Channel, Duration) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut found = self.ask_some(limit, 1, ask).await?;
        found.pop().ok_or_else(|| Error::bad_answer("asking for metadata", "no answer"))
    }

    /// Asks the known addresses in random order until `wanted` processes have answered. Returns fewer answers, but at least
    /// one, if the other processes do not answer in time.
    pub(crate) async fn ask_some<T, F>(
        &self,
        limit: Duration,
        wanted: usize,
        mut ask: impl FnMut(Channel, Duration) -> F,
    ) -> Result<Vec<T>>
    where
        F: Future<Output = Result<T>>,
    {
        let mut addresses = self.shared.bootstrap.clone();
        self.metadata(|metadata| addresses.extend(metadata.broker_addresses().cloned()));
        addresses.sort_unstable();
        addresses.dedup();
        fastrand::shuffle(&mut addresses);
        let deadline = Instant::now() + limit;
        let mut last = Error::new("asking for metadata", ErrorCode::BrokerNotAvailable, "there was no time left");
        let mut found = Vec::new();
        for address in addresses {
            let longest = if found.is_empty() { ASK_TIMEOUT } else { ASK_AGAIN_TIMEOUT };
            let limit = deadline.saturating_duration_since(Instant::now()).min(longest);
            if found.len() == wanted || limit.is_zero() {
                break;
            }
            match ask(self.channel(&address)?, limit).await {
                Ok(one) => found.push(one),
                Err(failure) => {
                    self.note_failure(&address, &failure);
                    last = failure;
                }
            }
        }
        if found.is_empty() { Err(last) } else { Ok(found) }
    }

    async fn describe_cluster_once(&self, limit: Duration) -> Result<v1::DescribeClusterResponse> {
        self.ask_any(limit, async |channel, limit| self.describe_cluster_at(channel, limit).await).await
    }

    /// Requests the brokers and the controller from a process, and caches them.
    async fn describe_cluster_at(&self, channel: Channel, limit: Duration) -> Result<v1::DescribeClusterResponse> {
        const OPERATION: &str = "describing the cluster";
        let ask = async |channel: Channel, limit: Duration| {
            let call = request(v1::DescribeClusterRequest {}, limit);
            let found = answer(OPERATION, limit, MetadataServiceClient::new(channel).describe_cluster(call)).await?;
            if found.brokers.is_empty() && found.controller_host.is_empty() {
                return Err(Error::new(OPERATION, ErrorCode::NotController, "the process knows no cluster yet"));
            }
            Ok(found)
        };
        let mut found = ask(channel, limit).await?;
        if let Some(controller) = controller_address(&found).filter(|_| found.brokers.is_empty()) {
            // A standby controller returns only the address of the active controller.
            found = ask(self.channel(&controller)?, limit)
                .await
                .inspect_err(|failure| self.note_failure(&controller, failure))?;
        }
        self.metadata(|metadata| {
            metadata.set_cluster(&found);
            let bootstrap = &self.shared.bootstrap;
            self.shared.connections.leave(|address| bootstrap.contains(address) || metadata.knows_address(address));
        });
        Ok(found)
    }

    /// Returns the addresses of all brokers, in random order.
    pub(crate) async fn find_brokers(&self, limit: Duration) -> Result<Vec<String>> {
        self.describe_cluster_once(limit).await?;
        let mut addresses: Vec<String> = self.metadata(|metadata| metadata.broker_addresses().cloned().collect());
        fastrand::shuffle(&mut addresses);
        Ok(addresses)
    }

    /// Refreshes the brokers and the leaders of a topic.
    async fn refresh(&self, topic: &str, limit: Duration) -> Result<v1::TopicDescription> {
        // Both answers come from the same process: a broker that is cut off may contradict the other brokers.
        let ask = async |channel: Channel, limit: Duration| {
            self.describe_cluster_at(channel.clone(), limit).await?;
            describe_topic_at(channel, topic, limit).await
        };
        let description = self.ask_any(limit, ask).await?;
        self.metadata(|metadata| metadata.set_topic(&description, Instant::now()));
        Ok(description)
    }

    /// Returns the number of partitions of a topic from the cache, which is refreshed in the background because a topic can
    /// grow.
    pub(crate) async fn partition_count(&self, topic: &str) -> Result<i32> {
        self.refresh_when_old(topic);
        let known = || self.metadata(|metadata| metadata.partition_count(topic));
        if let Some(count) = known() {
            return Ok(count);
        }
        let found = self.find_topic(topic, 1).await?.partitions.len();
        Ok(known().unwrap_or_else(|| i32::try_from(found).unwrap_or(i32::MAX)))
    }

    /// Refreshes a topic in the background if its metadata are some minutes old. A replaced leader that does not know its
    /// successor may answer without an error. For the number of partitions several brokers are asked: one that is cut off
    /// from the cluster does not know added partitions.
    pub(crate) fn refresh_when_old(&self, topic: &str) {
        if self.metadata(|metadata| metadata.is_due(topic, Instant::now())) {
            let (client, topic) = (self.clone(), topic.to_owned());
            tokio::spawn(async move {
                // If no broker answers, the cached metadata remain in use.
                let _ = client.refresh(&topic, ASK_TIMEOUT).await;
                if let Ok(Some(shape)) = shape_of(&client, &topic, client.request_timeout()).await {
                    client.metadata(|metadata| metadata.add_partitions(&topic, &shape.id, shape.count));
                }
            });
        }
    }

    pub(crate) fn known_leader(&self, topic: &str, partition: i32) -> Option<Leader> {
        match self.metadata(|metadata| metadata.leader(topic, partition)) {
            Lookup::Known(leader) => Some(leader),
            _ => None,
        }
    }

    /// Returns the leader of a partition, from the cache if it is known.
    pub(crate) async fn leader_of(&self, topic: &str, partition: i32, limit: Duration) -> Result<Leader> {
        if let Some(leader) = self.known_leader(topic, partition) {
            return Ok(leader);
        }
        self.refresh(topic, limit).await?;
        let operation = format!("finding the leader of {topic}/{partition}");
        match self.metadata(|metadata| metadata.leader(topic, partition)) {
            Lookup::Known(leader) => Ok(leader),
            Lookup::NoPartition(count) => Err(Error::missing(&operation, format!("the topic has {count} partitions"))),
            Lookup::NoLeader | Lookup::UnknownTopic => {
                Err(Error::new(&operation, ErrorCode::LeaderNotAvailable, "the partition has no leader"))
            }
        }
    }

    /// Updates the cached leader of a partition after a failure: from the leader hint, or forgets the leader.
    pub(crate) fn learn_from(&self, failure: &Error, address: &str, topic: &str, partition: i32) {
        self.note_failure(address, failure);
        if let Some(call) = failure.call() {
            self.metadata(|metadata| metadata.learn_from(call, topic, partition));
        }
    }

    /// Requests the address of the active controller and returns it.
    pub(crate) async fn find_controller(&self, operation: &str, limit: Duration) -> Result<String> {
        self.describe_cluster_once(limit).await?;
        self.metadata(|metadata| metadata.controller())
            .ok_or_else(|| Error::new(operation, ErrorCode::NotController, "no controller is active"))
    }
}

async fn describe_topic_at(channel: Channel, topic: &str, limit: Duration) -> Result<v1::TopicDescription> {
    let operation = format!("describing topic {topic}");
    let call = request(v1::DescribeTopicsRequest { topics: vec![topic.to_owned()], ..Default::default() }, limit);
    let mut stub = MetadataServiceClient::new(channel).max_decoding_message_size(LARGEST_MESSAGE);
    let mut found = answer(&operation, limit, stub.describe_topics(call)).await?;
    match (found.topics.pop(), found.topics.is_empty()) {
        (Some(v1::TopicDescription { error: Some(error), .. }), true) => Err(Error::of_topic(&operation, error)),
        (Some(description), true) => Ok(description),
        _ => Err(Error::bad_answer(&operation, "the answer has not one topic")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{At, ConsumerConfig, GroupConfig, NewTopic, ProducerConfig, Record};

    #[test]
    fn futures_of_calls_can_be_spawned() {
        fn spawnable(_: impl Future + Send) {}
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _guard = runtime.enter();
        let client = Client::new(ClientConfig::new(["127.0.0.1:9092"])).unwrap();
        spawnable(client.describe_cluster());
        spawnable(client.describe_topic("t"));
        spawnable(client.create_topic(NewTopic::new("t")));
        spawnable(client.delete_topic("t"));
        spawnable(client.list_offset("t", 0, At::Latest));
        spawnable(client.watch_events().next());
        spawnable(client.consumer(ConsumerConfig::default()).poll(Duration::ZERO));
        let mut member = client.group_consumer(GroupConfig::new("g")).unwrap();
        member.subscribe(["t"]);
        spawnable(member.next_event(1, Duration::ZERO));
        spawnable(member.poll(Duration::ZERO));
        spawnable(member.commit());
        spawnable(member.committed(&[]));
        spawnable(member.close());
        let producer = client.producer(ProducerConfig::default());
        spawnable(producer.send(Record::new("t")));
        spawnable(producer.flush());
        spawnable(producer.close(Duration::ZERO));
    }

    #[tokio::test]
    async fn times_without_an_end_can_be_set() {
        let config = ClientConfig::new(["127.0.0.1:1"]).timeout(Duration::MAX).request_timeout(Duration::MAX);
        let client = Client::new(config).unwrap().with_timeout(Duration::MAX);
        let call = tokio::time::timeout(Duration::from_millis(50), client.describe_topic("t")).await;
        assert!(call.is_err(), "no broker answers, and the call has no end");
        let (delivery_timeout, linger) = (Duration::MAX, Duration::MAX);
        let producer = client.producer(ProducerConfig { delivery_timeout, linger, ..Default::default() });
        let delivery = producer.send(Record::new("t").partition(0)).await.unwrap();
        producer.close(Duration::from_millis(50)).await;
        assert!(matches!(delivery.await, Err(Error::Closed)));
        let reading = ConsumerConfig { max_wait: Duration::MAX, ..Default::default() };
        let mut consumer = client.consumer(reading.clone());
        consumer.assign("t", 0, 0);
        assert!(consumer.poll(Duration::from_millis(50)).await.unwrap().is_empty());
        let auto_commit = Some(Duration::MAX);
        let mut member =
            client.group_consumer(GroupConfig { auto_commit, consumer: reading, ..GroupConfig::new("g") }).unwrap();
        member.subscribe(["t"]);
        assert!(member.poll(Duration::from_millis(50)).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn calls_end_at_the_timeout_with_the_cause() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let client = Client::new(ClientConfig::new([address]).timeout(Duration::from_millis(600))).unwrap();
        let begin = Instant::now();
        let failure = client.describe_topic("t").await.unwrap_err();
        assert!(failure.to_string().contains("refused"), "{failure}");
        assert!(begin.elapsed() >= Duration::from_millis(300), "no retry: {:?}", begin.elapsed());
    }
}
