//! Prints the records of a topic from its beginning until Ctrl-C: `cargo run --example consume -- rides`.

use paceline::{At, Client, ClientConfig, ConsumerConfig, Error};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let topic = std::env::args().nth(1).unwrap_or_else(|| "rides".to_owned());
    let client = Client::new(ClientConfig::from_env()?)?;
    let mut consumer = client.consumer(ConsumerConfig::default());
    consumer.assign_topic(&topic, At::Earliest).await?;
    loop {
        let record = tokio::select! {
            record = consumer.next() => record,
            _ = tokio::signal::ctrl_c() => return Ok(()),
        };
        match record {
            Ok(record) => {
                let text =
                    |bytes: Option<_>| bytes.as_deref().map(String::from_utf8_lossy).map(|text| text.into_owned());
                let (key, value) = (text(record.key), text(record.value));
                println!("{}/{} {key:?}={value:?}", record.partition, record.offset);
            }
            // Reading continues at the divergent offset.
            Err(Error::Truncated(truncated)) => eprintln!("{truncated}"),
            Err(error) => return Err(error),
        }
    }
}
