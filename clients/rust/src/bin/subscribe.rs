//! Prints the records of a topic as "partition offset value"; all programs of a group share them: subscribe TOPIC GROUP

use std::error::Error;
use std::io::{Write, stdout};

use paceline_samples::v1::gateway_service_client::GatewayServiceClient;
use paceline_samples::v1::{
    Positions, SubscribeRequest, Subscription, subscribe_request::Request, subscribe_response::Event,
};
use paceline_samples::{gateways, pause_after, stop_signal};
use tokio::sync::{mpsc, watch};
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};
use tonic::{Status, transport::Channel};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, topic, group] = arguments.as_slice() else { return Err("usage: subscribe TOPIC GROUP".into()) };
    let subscription = Subscription { topics: vec![topic.clone()], group: group.clone(), ..Default::default() };
    let stopped = stop_signal()?;
    let mut failures = 0;
    for client in gateways()?.take_while(|_| !*stopped.borrow()) {
        if let Err(error) = read(client, subscription.clone(), stopped.clone(), &mut failures).await {
            failures += 1;
            pause_after(error, failures).await?;
        }
    }
    Ok(())
}

/// Reads one stream to its end.
async fn read(
    mut client: GatewayServiceClient<Channel>,
    subscription: Subscription,
    mut stopped: watch::Receiver<bool>,
    failures: &mut u32,
) -> Result<(), Status> {
    let (requests, receiver) = mpsc::unbounded_channel();
    let _ = requests.send(Request::Subscribe(subscription));
    let mut requests = Some(requests);
    let messages = UnboundedReceiverStream::new(receiver).map(|request| SubscribeRequest { request: Some(request) });
    let mut responses = client.subscribe(messages).await?.into_inner();
    loop {
        let response = tokio::select! {
            response = responses.message() => response?,
            // Closes our side of the stream; the gateway commits and closes the other.
            _ = stopped.wait_for(|stopped| *stopped), if requests.is_some() => { requests = None; continue }
        };
        let Some(response) = response else { return Ok(()) };
        let (Some(Event::Records(batch)), Some(requests)) = (response.event, &requests) else { continue }; // A notice.
        let mut out = stdout().lock();
        for record in batch.records {
            let value = record.value.unwrap_or_default();
            let _ = writeln!(out, "{}\t{}\t{}", batch.partition, record.offset, String::from_utf8_lossy(&value));
        }
        // Everything before this position is processed: after a failure the next stream begins here.
        let _ = requests.send(Request::Acknowledge(Positions { positions: batch.next.into_iter().collect() }));
        *failures = 0;
    }
}
