//! Writes records to a topic and prints their partitions and offsets: `cargo run --example produce -- rides 10`.

use std::time::Duration;

use paceline::{Client, ClientConfig, Error, ProducerConfig, Record};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let topic = arguments.next().unwrap_or_else(|| "rides".to_owned());
    let count: usize = arguments.next().map_or(10, |count| count.parse().expect("a number of records"));
    let client = Client::new(ClientConfig::from_env()?)?;
    let producer = client.producer(ProducerConfig { linger: Duration::from_millis(5), ..Default::default() });
    let mut deliveries = Vec::new();
    for number in 0..count {
        let record = Record::new(&topic).key(format!("key-{}", number % 16)).value(format!("value-{number}"));
        deliveries.push(producer.send(record).await?);
    }
    for (number, delivery) in deliveries.into_iter().enumerate() {
        let placed = delivery.await?;
        if count <= 10 {
            println!("record {number}: partition {}, offset {}", placed.partition, placed.offset);
        }
    }
    println!("{count} records acknowledged by every in-sync replica");
    producer.close(Duration::from_secs(10)).await;
    Ok(())
}
