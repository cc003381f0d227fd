//! Publishes each line of the standard input as a record: publish TOPIC < FILE

use std::error::Error;
use std::time::Duration;

use paceline_samples::v1::{PublishRecord, PublishRequest};
use paceline_samples::{gateways, pause_after};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tonic::Request;

const RECORDS_PER_CALL: usize = 500;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let topic = std::env::args().nth(1).ok_or("usage: publish TOPIC < FILE")?;
    let mut clients = gateways()?;
    let mut client = clients.next().ok_or("no gateway")?;
    let mut lines = BufReader::new(stdin()).lines();
    let mut published = 0;
    loop {
        let mut records = Vec::new();
        while records.len() < RECORDS_PER_CALL
            && let Some(line) = lines.next_line().await?
        {
            // Records with equal keys stay in order: PublishRecord { key: Some(...), ... }
            records.push(PublishRecord { value: Some(line.into()), ..Default::default() });
        }
        if records.is_empty() {
            break;
        }
        published += records.len();
        let message = PublishRequest { topic: topic.clone(), records, ..Default::default() };
        let mut failures = 0;
        let response = loop {
            let mut request = Request::new(message.clone());
            request.set_timeout(Duration::from_secs(60));
            match client.publish(request).await {
                Ok(response) => break response.into_inner(),
                Err(error) => {
                    // If only the answer was lost, the next attempt appends the records twice; IdempotentProducer in the
                    // proto prevents it.
                    failures += 1;
                    pause_after(error, failures).await?;
                    client = clients.next().ok_or("no gateway")?;
                }
            }
        };
        if let Some(error) = response.results.into_iter().find_map(|result| result.error) {
            return Err(format!("a record was not published: {}", error.message).into());
        }
    }
    println!("{published} records published");
    Ok(())
}
