//! Members of consumer groups. A task polls each member in the background, so that commands never wait for a rebalance.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use paceline::{Client, CommittedOffset, Error, GroupConfig, GroupConsumer, GroupEvent, TopicPartition};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::codec::{failure, integer, milliseconds, number, reset, text};

const ONE_POLL: Duration = Duration::from_millis(100);

#[derive(Default)]
pub struct Members(HashMap<String, Member>);

struct Member {
    consumer: Arc<tokio::sync::Mutex<GroupConsumer>>,
    seen: Arc<Mutex<Seen>>,
    poller: Option<Poller>,
}

struct Poller {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// The results of all polls of a member.
#[derive(Default)]
struct Seen {
    read: BTreeMap<String, Vec<String>>,
    events: Vec<Value>,
    error: Value,
}

impl Members {
    pub async fn perform(&mut self, client: &Client, command: &Value) -> Result<Option<Value>, Error> {
        let name = text(command, "member");
        let operation = text(command, "command");
        if operation == "group_open" {
            self.close(name).await;
            self.0.insert(name.to_owned(), Member::open(client, command)?);
            return Ok(Some(json!({})));
        }
        if operation == "group_close" {
            self.close(name).await;
            return Ok(Some(json!({})));
        }
        let unknown = || Error::InvalidArgument(format!("no member {name}"));
        let member = self.0.get_mut(name).ok_or_else(unknown)?;
        match operation {
            "group_state" => return Ok(Some(member.state().await)),
            "group_commit" => member.commit(command).await?,
            "group_committed" => return member.committed(command).await.map(Some),
            "group_pause" => member.pause().await,
            "group_resume" => member.resume(),
            _ => return Ok(None),
        }
        Ok(Some(json!({})))
    }

    pub async fn close_all(&mut self) {
        for name in self.0.keys().cloned().collect::<Vec<_>>() {
            self.close(&name).await;
        }
    }

    async fn close(&mut self, name: &str) {
        let Some(mut member) = self.0.remove(name) else { return };
        member.pause().await;
        let consumer = Arc::into_inner(member.consumer).expect("the poller has ended");
        if let Err(error) = consumer.into_inner().close().await {
            eprintln!("closing member {name}: {error}");
        }
    }
}

impl Member {
    fn open(client: &Client, command: &Value) -> Result<Self, Error> {
        let mut config = GroupConfig {
            instance_id: text(command, "group_instance_id").to_owned(),
            session_timeout: milliseconds(command, "session_timeout_ms", 30_000),
            heartbeat_interval: milliseconds(command, "heartbeat_interval_ms", 100),
            max_poll_interval: milliseconds(command, "max_poll_interval_ms", 60_000),
            auto_commit: (command["auto_commit"] == true)
                .then(|| milliseconds(command, "auto_commit_interval_ms", 5_000)),
            ..GroupConfig::new(text(command, "group_id"))
        };
        config.consumer.reset = reset(command);
        if let Some(assignors) = command["assignors"].as_array() {
            let names = assignors.iter().filter_map(Value::as_str);
            config.assignors = names.map(str::parse).collect::<Result<_, _>>()?;
        }
        let mut consumer = client.group_consumer(config)?;
        consumer.subscribe(command["topics"].as_array().into_iter().flatten().filter_map(Value::as_str));
        let consumer = Arc::new(tokio::sync::Mutex::new(consumer));
        let mut member = Member { consumer, seen: Arc::default(), poller: None };
        member.resume();
        Ok(member)
    }

    fn resume(&mut self) {
        if self.poller.is_none() {
            let (stop, stopped) = watch::channel(false);
            let task = tokio::spawn(poll(Arc::clone(&self.consumer), Arc::clone(&self.seen), stopped));
            self.poller = Some(Poller { stop, task });
        }
    }

    async fn pause(&mut self) {
        if let Some(Poller { stop, task }) = self.poller.take() {
            stop.send_replace(true);
            task.await.expect("the poller does not panic");
        }
    }

    async fn commit(&mut self, command: &Value) -> Result<(), Error> {
        let mut consumer = self.consumer.lock().await;
        let Some(offsets) = command["offsets"].as_array() else { return consumer.commit().await };
        let offsets = offsets.iter().map(offset).collect::<Result<Vec<_>, _>>()?;
        consumer.commit_offsets(offsets).await
    }

    async fn committed(&self, command: &Value) -> Result<Value, Error> {
        let mut wanted: Vec<TopicPartition> = Vec::new();
        for (topic, partitions) in command["partitions"].as_object().into_iter().flatten() {
            let numbers = partitions.as_array().into_iter().flatten().filter_map(Value::as_i64);
            wanted.extend(numbers.filter_map(|number| Some((topic.clone(), i32::try_from(number).ok()?))));
        }
        wanted.sort();
        let found = self.consumer.lock().await.committed(&wanted).await?;
        let offsets = wanted.iter().map(|at| {
            let committed = found.get(at);
            json!({
                "topic": at.0,
                "partition": at.1,
                "offset": committed.map(|committed| committed.offset.to_string()),
                "metadata": committed.map_or("", |committed| &committed.metadata),
                "leader_epoch": committed.and_then(|committed| committed.leader_epoch),
            })
        });
        Ok(json!({"offsets": offsets.collect::<Vec<_>>()}))
    }

    async fn state(&self) -> Value {
        let consumer = self.consumer.lock().await;
        let assignment = consumer.assignment();
        let generation = consumer.generation();
        let positions: BTreeMap<String, String> = assignment
            .iter()
            .filter_map(|(topic, partition)| {
                Some((format!("{topic}/{partition}"), consumer.position(topic, *partition)?.to_string()))
            })
            .collect();
        let seen = lock(&self.seen);
        json!({
            "member_id": generation.map_or(String::new(), |_| consumer.member_id()),
            "generation": generation.unwrap_or(-1),
            "assignment": by_topic(&assignment),
            "positions": positions,
            "read": seen.read,
            "events": seen.events,
            "error": seen.error,
        })
    }
}

/// Polls until a stop is requested or a poll fails. The lock is fair: a command gets it between two polls.
async fn poll(
    consumer: Arc<tokio::sync::Mutex<GroupConsumer>>,
    seen: Arc<Mutex<Seen>>,
    stopped: watch::Receiver<bool>,
) {
    while !*stopped.borrow() {
        let mut consumer = consumer.lock().await;
        let found = consumer.next_event(usize::MAX, ONE_POLL).await;
        let mut seen = lock(&seen);
        match found {
            Ok(Some(GroupEvent::Records(records))) => {
                for record in records {
                    let at = format!("{}/{}", record.topic, record.partition);
                    seen.read.entry(at).or_default().push(record.offset.to_string());
                }
            }
            Ok(Some(GroupEvent::Assigned(partitions))) => seen.note("assigned", &partitions),
            Ok(Some(GroupEvent::Revoked(partitions))) => seen.note("revoked", &partitions),
            Ok(Some(GroupEvent::Lost(partitions))) => seen.note("lost", &partitions),
            Ok(_) => {}
            Err(error) => {
                seen.error = failure(&error);
                return;
            }
        }
    }
}

impl Seen {
    fn note(&mut self, event: &str, partitions: &[TopicPartition]) {
        if !partitions.is_empty() {
            self.events.push(json!([event, by_topic(partitions)]));
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap()
}

fn by_topic(partitions: &[TopicPartition]) -> BTreeMap<&str, Vec<i32>> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for (topic, partition) in partitions {
        topics.entry(topic).or_default().push(*partition);
    }
    topics.values_mut().for_each(|numbers| numbers.sort_unstable());
    topics
}

fn offset(fields: &Value) -> Result<(TopicPartition, CommittedOffset), Error> {
    let committed = CommittedOffset {
        offset: integer(&fields["offset"])?,
        metadata: text(fields, "metadata").to_owned(),
        leader_epoch: fields["leader_epoch"].as_i64().and_then(|epoch| i32::try_from(epoch).ok()),
    };
    Ok(((text(fields, "topic").to_owned(), number(fields, "partition", 0)), committed))
}
