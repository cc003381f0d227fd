//! Creates a topic and describes it, or deletes it: `cargo run --example admin -- rides`, `... -- rides --delete`.

use paceline::{Client, ClientConfig, Error, ErrorCode, NewTopic};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let topic = arguments.next().unwrap_or_else(|| "rides".to_owned());
    let client = Client::new(ClientConfig::from_env()?)?;
    if arguments.next().as_deref() == Some("--delete") {
        client.delete_topic(&topic).await?;
        println!("deleted {topic}");
        return Ok(());
    }
    let brokers = client.describe_cluster().await?.brokers.len();
    let replicas = brokers.clamp(1, 3) as i32;
    match client.create_topic(NewTopic::new(&topic).partitions(3).replication_factor(replicas)).await {
        Err(error) if error.code() == Some(ErrorCode::TopicAlreadyExists) => {}
        created => drop(created?),
    }
    let described = client.describe_topic(&topic).await?;
    println!("topic {topic} id {}", described.topic_id);
    for partition in described.partitions {
        println!(
            "partition {}: leader {:?}, replicas {:?}, in sync {:?}",
            partition.partition, partition.leader, partition.replicas, partition.isr
        );
    }
    Ok(())
}
