//! Connects to the gateways that the environment names; README.md lists the variables.

use std::iter::Cycle;
use std::time::Duration;
use std::vec::IntoIter;
use std::{env, error::Error, fs, io};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

use v1::gateway_service_client::GatewayServiceClient;

/// The stubs, which build.rs writes.
pub mod v1 {
    tonic::include_proto!("paceline.v1");
}

const MOST_FAILURES: u32 = 60;

/// Returns clients without end: one of each gateway in turn.
pub fn gateways() -> Result<Cycle<IntoIter<GatewayServiceClient<Channel>>>, Box<dyn Error>> {
    let tls = tls()?;
    let addresses = env::var("PACELINE_GATEWAYS").unwrap_or_else(|_| "localhost:9095".to_owned());
    let clients = addresses.split(',').map(|address| {
        let endpoint = match &tls {
            Some(tls) => Endpoint::from_shared(format!("https://{address}"))?.tls_config(tls.clone())?,
            None => Endpoint::from_shared(format!("http://{address}"))?,
        };
        Ok(GatewayServiceClient::new(endpoint.connect_lazy()))
    });
    Ok(clients.collect::<Result<Vec<_>, tonic::transport::Error>>()?.into_iter().cycle())
}

fn tls() -> Result<Option<ClientTlsConfig>, Box<dyn Error>> {
    let file = |name: &str| env::var(format!("PACELINE_SSL_{name}_FILE")).ok().map(fs::read).transpose();
    let Some(ca) = file("CA")? else { return Ok(None) };
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
    Ok(Some(match (file("CERTIFICATE")?, file("KEY")?) {
        (Some(certificate), Some(key)) => tls.identity(Identity::from_pem(certificate, key)),
        _ => tls,
    }))
}

/// Returns a value that becomes true at SIGINT or SIGTERM.
pub fn stop_signal() -> io::Result<watch::Receiver<bool>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! { _ = interrupt.recv() => (), _ = terminate.recv() => () };
        stop.send(true)
    });
    Ok(stopped)
}

/// Sleeps for a second after an error that may be over at the next attempt; returns the message of any other error, and of
/// the last of too many failures in a row.
pub async fn pause_after(error: Status, failures: u32) -> Result<(), String> {
    // A status with a source is that of a broken connection; its code may be Unknown.
    let passes =
        matches!(error.code(), Code::Unavailable | Code::Aborted | Code::DeadlineExceeded) || error.source().is_some();
    if !passes || failures >= MOST_FAILURES {
        return Err(error.message().to_owned());
    }
    eprintln!("{}; trying the next gateway", error.message());
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}
