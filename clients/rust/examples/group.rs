//! Reads a topic as a member of a consumer group until Ctrl-C: `cargo run --example group -- rides billing`. Start it twice
//! to see the group divide the partitions.

use std::time::Duration;

use paceline::{Client, ClientConfig, Error, GroupConfig, GroupEvent};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let topic = arguments.next().unwrap_or_else(|| "rides".to_owned());
    let group_id = arguments.next().unwrap_or_else(|| "billing".to_owned());
    let client = Client::new(ClientConfig::from_env()?)?;
    // No automatic commits: the program commits after it has printed the records.
    let config = GroupConfig { auto_commit: None, ..GroupConfig::new(group_id) };
    let mut consumer = client.group_consumer(config)?;
    consumer.subscribe([topic]);
    loop {
        let event = tokio::select! {
            event = consumer.next_event(500, Duration::from_secs(1)) => event?,
            _ = tokio::signal::ctrl_c() => return consumer.close().await,
        };
        match event {
            Some(GroupEvent::Records(records)) => {
                for record in records {
                    let value = record.value.as_deref().map(String::from_utf8_lossy);
                    println!("{}/{} {}", record.partition, record.offset, value.as_deref().unwrap_or("null"));
                }
                match consumer.commit().await {
                    // Another member owns the partitions and will read these records again.
                    Err(error @ Error::CommitFailed { .. }) => eprintln!("{error}"),
                    committed => committed?,
                }
            }
            Some(GroupEvent::Assigned(partitions)) => println!("assigned {partitions:?}"),
            Some(GroupEvent::Revoked(partitions)) => println!("revoked {partitions:?}"),
            Some(GroupEvent::Lost(partitions)) => println!("lost {partitions:?}"),
            _ => {}
        }
    }
}
