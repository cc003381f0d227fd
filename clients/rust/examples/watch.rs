//! Prints elections, changes of ISRs and other events of a cluster until Ctrl-C: `cargo run --example watch`.

use paceline::{Client, ClientConfig, Error, Watched};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::new(ClientConfig::from_env()?)?;
    let mut events = client.watch_events();
    loop {
        let watched = tokio::select! {
            watched = events.next() => watched?,
            _ = tokio::signal::ctrl_c() => return Ok(()),
        };
        match watched {
            Watched::Event(event) => println!("{event:?}"),
            Watched::Gap(gap) => println!("events are missing: {:?}", gap.reason()),
            _ => {}
        }
    }
}
