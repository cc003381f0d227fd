//! Writes numbered records while you kill brokers, reads them back, and prints a summary as JSON. The exit code is 3 if a
//! record was not acknowledged, or if an acknowledged record is missing, doubled or out of order.
//!
//!     cargo run --example failover -- [COUNT] [RECORDS_PER_SECOND]     defaults: 100,000 and 10,000; rate 0: no limit

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use paceline::{At, Client, ClientConfig, ConsumerConfig, Error, NewTopic, ProducerConfig, Record};

const PARTITIONS: i32 = 3;

#[derive(Debug, Default)]
struct Summary {
    acknowledged: usize,
    failed: usize,
    read: usize,
    lost: usize,
    doubled: usize,
    reordered: usize,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>().expect("a number"));
    let (count, rate) = (arguments.next().unwrap_or(100_000), arguments.next().unwrap_or(10_000));
    let begin = Instant::now();
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let topic = format!("rust-failover-{now_ms}");
    let client = Client::new(ClientConfig::from_env()?)?;
    let new = NewTopic::new(&topic).partitions(PARTITIONS).replication_factor(3).config("min.insync.replicas", "2");
    client.create_topic(new).await?;

    let mut summary = Summary::default();
    let acknowledged = produce(&client, &topic, count, rate, &mut summary).await?;
    read_back(&client, &topic, &acknowledged, &mut summary).await?;
    let Summary { acknowledged, failed, read, lost, doubled, reordered } = summary;
    println!(
        "{{\"topic\":\"{topic}\",\"acknowledged\":{acknowledged},\"failed\":{failed},\"read\":{read},\"lost\":{lost},\
         \"doubled\":{doubled},\"reordered\":{reordered},\"seconds\":{:.1}}}",
        begin.elapsed().as_secs_f64()
    );
    if failed + lost + doubled + reordered > 0 {
        std::process::exit(3);
    }
    Ok(())
}

/// Sends records numbered from 0 and returns for each number whether the record was acknowledged.
async fn produce(
    client: &Client,
    topic: &str,
    count: usize,
    rate: usize,
    summary: &mut Summary,
) -> Result<Vec<bool>, Error> {
    let begin = Instant::now();
    let producer = client.producer(ProducerConfig { linger: Duration::from_millis(5), ..Default::default() });
    let mut deliveries = Vec::with_capacity(count);
    for number in 0..count {
        let record = Record::new(topic).partition(number as i32 % PARTITIONS).value(number.to_string());
        deliveries.push(producer.send(record).await?);
        if rate > 0 && number % (rate / 100 + 1) == 0 {
            let due = Duration::from_secs_f64(number as f64 / rate as f64);
            tokio::time::sleep(due.saturating_sub(begin.elapsed())).await;
        }
    }
    let mut acknowledged = vec![false; count];
    for (number, delivery) in deliveries.into_iter().enumerate() {
        match delivery.await {
            Ok(_) => {
                acknowledged[number] = true;
                summary.acknowledged += 1;
            }
            Err(error) => {
                eprintln!("record {number}: {error}");
                summary.failed += 1;
            }
        }
    }
    producer.close(Duration::from_secs(10)).await;
    Ok(acknowledged)
}

/// Reads every partition to its end and counts records that are missing, doubled or out of order.
async fn read_back(client: &Client, topic: &str, acknowledged: &[bool], summary: &mut Summary) -> Result<(), Error> {
    let mut seen = vec![0; acknowledged.len()];
    for partition in 0..PARTITIONS {
        let end = client.list_offset(topic, partition, At::Latest).await?.unwrap_or(0);
        let mut consumer = client.consumer(ConsumerConfig { max_bytes: 4 << 20, ..Default::default() });
        consumer.assign(topic, partition, 0);
        let mut last = None;
        while consumer.position(topic, partition) < Some(end) {
            let records = consumer.poll(Duration::from_secs(30)).await?;
            assert!(!records.is_empty(), "partition {partition}: no records in 30 s below offset {end}");
            for record in records {
                let value = String::from_utf8(record.value.unwrap_or_default().into()).expect("a number");
                let number: usize = value.parse().expect("a number");
                summary.reordered += usize::from(last > Some(number));
                last = Some(number);
                seen[number] += 1;
                summary.read += 1;
            }
        }
    }
    for (times, acknowledged) in seen.iter().zip(acknowledged) {
        summary.doubled += usize::from(*times > 1);
        summary.lost += usize::from(*acknowledged && *times == 0);
    }
    Ok(())
}
