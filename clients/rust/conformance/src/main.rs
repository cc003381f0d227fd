//! The driver of the Rust client for `tests/conformance`: JSON lines on stdin and stdout.

mod codec;
mod members;

use std::collections::HashMap;
use std::io::{BufRead, Write, stdin, stdout};
use std::time::Duration;

use paceline::{
    At, Client, ClientConfig, Consumer, ConsumerConfig, Delivery, Error, NewTopic, Producer, ProducerConfig, Start,
    TlsFiles, partition_for_key,
};
use serde_json::{Value, json};

use crate::codec::{bytes, failure, integer, milliseconds, number, record, record_to_json, reset, text};
use crate::members::Members;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut driver = Driver::default();
    for line in stdin().lock().lines() {
        let line = line?;
        let command: Value = serde_json::from_str(&line).unwrap_or_default();
        let mut answer = match driver.perform(&command).await {
            Ok(Some(result)) => json!({"ok": result}),
            Ok(None) => json!({"unsupported": format!("the driver has no command {}", text(&command, "command"))}),
            Err(error) => json!({"error": failure(&error)}),
        };
        answer["id"] = command["id"].clone();
        writeln!(stdout(), "{answer}")?;
    }
    driver.close().await;
    Ok(())
}

#[derive(Default)]
struct Driver {
    session: Option<Session>,
}

/// The clients that the command `open` creates.
struct Session {
    client: Client,
    producer: Producer,
    consumers: HashMap<String, Consumer>,
    members: Members,
}

impl Driver {
    async fn perform(&mut self, command: &Value) -> Result<Option<Value>, Error> {
        match text(command, "command") {
            "hello" => {
                return Ok(Some(
                    json!({"language": "rust", "client": "paceline-rust", "version": env!("CARGO_PKG_VERSION")}),
                ));
            }
            "partition_for_key" => {
                let key = bytes(&command["key"]).unwrap_or_default();
                return Ok(Some(json!({"partition": partition_for_key(&key, number(command, "partition_count", 1))})));
            }
            "open" => {
                self.close().await;
                self.session = Some(Session::open(command)?);
                return Ok(Some(json!({})));
            }
            "close" => {
                self.close().await;
                return Ok(Some(json!({})));
            }
            _ => {}
        }
        match &mut self.session {
            Some(session) => session.perform(command).await,
            None => Err(Error::InvalidArgument("the driver is not open".to_owned())),
        }
    }

    async fn close(&mut self) {
        if let Some(mut session) = self.session.take() {
            session.members.close_all().await;
            session.producer.close(Duration::from_secs(1)).await;
        }
    }
}

impl Session {
    fn open(command: &Value) -> Result<Self, Error> {
        let bootstrap = command["bootstrap"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let delivery_timeout = milliseconds(command, "delivery_timeout_ms", 30_000);
        let mut config = ClientConfig::new(bootstrap)
            .request_timeout(milliseconds(command, "request_timeout_ms", 10_000))
            .timeout(delivery_timeout);
        if let Some(ca_file) = command["tls"]["ca_file"].as_str() {
            let mut files = TlsFiles::new(ca_file);
            if let Some(certificate_file) = command["tls"]["certificate_file"].as_str() {
                files = files.identity(certificate_file, text(&command["tls"], "key_file"));
            }
            config = config.tls(files);
        }
        let client = Client::new(config)?;
        let producer = client.producer(ProducerConfig {
            delivery_timeout,
            linger: milliseconds(command, "linger_ms", 0),
            ..ProducerConfig::default()
        });
        Ok(Session { client, producer, consumers: HashMap::new(), members: Members::default() })
    }

    async fn perform(&mut self, command: &Value) -> Result<Option<Value>, Error> {
        let topic = text(command, "topic");
        let partition = number(command, "partition", 0);
        let admin = match command["timeout_ms"].is_null() {
            true => self.client.clone(),
            false => self.client.with_timeout(milliseconds(command, "timeout_ms", 30_000)),
        };
        let result = match text(command, "command") {
            "produce" => self.produce(command).await,
            "consume_open" => self.consume_open(command).await?,
            "consume_poll" => self.consume_poll(command).await?,
            "consume_close" => {
                self.consumers.remove(text(command, "consumer"));
                json!({})
            }
            "list_offset" => {
                let at = match text(command, "at") {
                    "earliest" => At::Earliest,
                    "timestamp" => At::TimestampMs(integer(&command["timestamp_ms"]).unwrap_or(0)),
                    _ => At::Latest,
                };
                let offset = admin.list_offset(topic, partition, at).await?;
                json!({"offset": offset.map(|offset| offset.to_string())})
            }
            "create_topic" => {
                let mut new = NewTopic::new(topic)
                    .partitions(number(command, "partitions", 1))
                    .replication_factor(number(command, "replication_factor", 3));
                for (key, value) in command["configs"].as_object().into_iter().flatten() {
                    new = new.config(key, value.as_str().unwrap_or_default());
                }
                json!({"topic_id": admin.create_topic(new).await?})
            }
            "delete_topic" => {
                admin.delete_topic(topic).await?;
                json!({})
            }
            "describe_topic" => {
                let described = admin.describe_topic(topic).await?.partitions.into_iter();
                let partitions = described.map(|one| {
                    json!({"partition": one.partition, "leader": one.leader, "replicas": one.replicas, "isr": one.isr})
                });
                json!({"partitions": partitions.collect::<Vec<_>>()})
            }
            _ => return self.members.perform(&self.client, command).await,
        };
        Ok(Some(result))
    }

    async fn produce(&mut self, command: &Value) -> Value {
        let mut deliveries: Vec<Result<Delivery, Error>> = Vec::new();
        for one in command["records"].as_array().into_iter().flatten() {
            deliveries.push(match record(text(command, "topic"), one) {
                Ok(record) => self.producer.send(record).await,
                Err(error) => Err(error),
            });
        }
        let mut results = Vec::new();
        for delivery in deliveries {
            let outcome = match delivery {
                Ok(delivery) => delivery.await,
                Err(error) => Err(error),
            };
            results.push(match outcome {
                Ok(placed) => json!({"partition": placed.partition, "offset": placed.offset.to_string()}),
                Err(error) => json!({"error": failure(&error)}),
            });
        }
        json!({"results": results})
    }

    async fn consume_open(&mut self, command: &Value) -> Result<Value, Error> {
        let (topic, partition) = (text(command, "topic"), number(command, "partition", 0));
        let start: Start = match &command["start"] {
            Value::Null => At::Earliest.into(),
            start if start == "earliest" => At::Earliest.into(),
            // Look up the end now, so that the consumer reads the records that are sent after this command.
            start if start == "latest" => {
                self.client.list_offset(topic, partition, At::Latest).await?.unwrap_or(0).into()
            }
            start => integer(start)?.into(),
        };
        let mut consumer = self.client.consumer(ConsumerConfig { reset: reset(command), ..ConsumerConfig::default() });
        match command.get("partition") {
            Some(Value::Null) => consumer.assign_topic(topic, start).await?,
            _ => consumer.assign(topic, partition, start),
        }
        self.consumers.insert(text(command, "consumer").to_owned(), consumer);
        Ok(json!({}))
    }

    async fn consume_poll(&mut self, command: &Value) -> Result<Value, Error> {
        let name = text(command, "consumer");
        let unknown = || Error::InvalidArgument(format!("no consumer {name}"));
        let consumer = self.consumers.get_mut(name).ok_or_else(unknown)?;
        let max_records = usize::try_from(number(command, "max_records", 100)).unwrap_or(1);
        match consumer.poll_up_to(max_records, milliseconds(command, "timeout_ms", 10_000)).await {
            Ok(records) => {
                Ok(json!({"records": records.iter().map(record_to_json).collect::<Vec<_>>(), "truncated": null}))
            }
            Err(Error::Truncated(truncated)) => Ok(json!({"records": [], "truncated": {
                "position": truncated.position.to_string(),
                "divergent_offset": truncated.divergent_offset.to_string(),
            }})),
            Err(error) => Err(error),
        }
    }
}
