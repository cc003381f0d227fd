//! One channel per address.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::config::{ClientConfig, TlsFiles};
use crate::error::{Error, Result};
use crate::v1::ErrorCode;

/// Limit of a message in either direction, in bytes; the first batch of a fetch is returned even if it is larger than the
/// limit of the fetch.
pub(crate) const LARGEST_MESSAGE: usize = 64 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a channel is kept after its last use if its address is neither a bootstrap address nor in the metadata.
const MAX_AGE: Duration = Duration::from_secs(3_600);

#[derive(Debug)]
pub(crate) struct Connections {
    tls: Option<TlsFiles>,
    channels: Mutex<HashMap<String, Used>>,
}

/// A channel and the time of its last use.
#[derive(Debug)]
struct Used {
    channel: Channel,
    at: Instant,
}

impl Connections {
    pub(crate) fn new(config: &ClientConfig) -> Self {
        Connections { tls: config.tls.clone(), channels: Mutex::default() }
    }

    /// Returns the channel to an address; it connects with the first call.
    pub(crate) fn channel(&self, address: &str) -> Result<Channel> {
        let mut channels = self.channels.lock().unwrap();
        if let Some(used) = channels.get_mut(address) {
            used.at = Instant::now();
            return Ok(used.channel.clone());
        }
        let channel = self.endpoint(address)?.connect_lazy();
        channels.insert(address.to_owned(), Used { channel: channel.clone(), at: Instant::now() });
        Ok(channel)
    }

    /// Closes the connection to an address once the calls in flight have ended. The next call connects again, and reads the
    /// TLS files again.
    pub(crate) fn forget(&self, address: &str) {
        self.channels.lock().unwrap().remove(address);
    }

    /// Closes the connections to addresses for which `is_known` is false and that were not used for `MAX_AGE`.
    pub(crate) fn leave(&self, is_known: impl Fn(&String) -> bool) {
        self.channels.lock().unwrap().retain(|address, used| is_known(address) || used.at.elapsed() <= MAX_AGE);
    }

    fn endpoint(&self, address: &str) -> Result<Endpoint> {
        let unusable = |error: tonic::transport::Error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            Error::new(
                "connecting",
                ErrorCode::BrokerNotAvailable,
                format!("the address {address:?}: {error}: {cause}"),
            )
        };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(unusable)?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .tcp_nodelay(true)
            // The default windows, 64 KiB, would cost a round trip per 64 KiB of an answer.
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(16 << 20);
        if let Some(files) = &self.tls {
            // Retriable: the files were readable when the client was created, so they are probably being replaced.
            let unreadable = |error: Error| Error::new("connecting", ErrorCode::BrokerNotAvailable, error.to_string());
            endpoint = endpoint.tls_config(files.load().map_err(unreadable)?).map_err(unusable)?;
        }
        Ok(endpoint)
    }
}

/// Returns `host:port`, with brackets around an IPv6 address, which a server may send with or without them; None if host or
/// port is missing.
pub(crate) fn join_address(host: &str, port: i32) -> Option<String> {
    let host = host.trim_matches(['[', ']']);
    match (host, port) {
        ("", _) | (_, 0) => None,
        _ if host.contains(':') => Some(format!("[{host}]:{port}")),
        _ => Some(format!("{host}:{port}")),
    }
}

/// Returns a request with a deadline that gRPC sends to the server.
pub(crate) fn request<T>(message: T, limit: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

/// Waits at most `limit` for the response of a call.
pub(crate) async fn answer<T>(
    operation: &str,
    limit: Duration,
    call: impl Future<Output = std::result::Result<Response<T>, Status>>,
) -> Result<T> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(Error::of_status(operation, status)),
        Err(_) => Err(Error::timed_out(operation, limit)),
    }
}

/// Returns 80% of the limit of a call, in milliseconds, so that the response of the server arrives within the limit.
pub(crate) fn server_wait_ms(limit: Duration) -> i32 {
    i32::try_from(limit.as_millis() * 8 / 10).unwrap_or(i32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_joined() {
        assert_eq!(join_address("broker-1", 9092).as_deref(), Some("broker-1:9092"));
        assert_eq!(join_address("::1", 9092).as_deref(), Some("[::1]:9092"));
        assert_eq!(join_address("[::1]", 9092).as_deref(), Some("[::1]:9092"));
        assert_eq!(join_address("", 9092), None);
        assert_eq!(join_address("broker-1", 0), None);
    }

    #[tokio::test]
    async fn a_refused_connection_is_a_definite_failure() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let connections = Connections::new(&ClientConfig::new([address.clone()]));
        let mut stub =
            crate::v1::metadata_service_client::MetadataServiceClient::new(connections.channel(&address).unwrap());
        let limit = Duration::from_secs(5);
        let error =
            answer("asking", limit, stub.describe_cluster(request(Default::default(), limit))).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::BrokerNotAvailable));
        assert!(error.is_definite() && error.is_retriable(), "{error}");
        assert!(error.to_string().contains("refused"), "{error}");
    }

    #[tokio::test]
    async fn tls_files_that_cannot_be_read_for_a_while_are_a_failure_that_may_pass() {
        let config = ClientConfig::new(["127.0.0.1:1"]).tls(TlsFiles::new("/nowhere/ca.crt"));
        let error = Connections::new(&config).channel("127.0.0.1:1").unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::BrokerNotAvailable));
        assert!(error.is_definite() && error.is_retriable(), "{error}");
        assert!(error.to_string().contains("/nowhere/ca.crt cannot be read"), "{error}");
    }

    #[tokio::test]
    async fn a_server_that_never_answers_leaves_the_outcome_unknown() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let connections = Connections::new(&ClientConfig::new([address.clone()]));
        let mut stub =
            crate::v1::metadata_service_client::MetadataServiceClient::new(connections.channel(&address).unwrap());
        let limit = Duration::from_millis(100);
        let error =
            answer("asking", limit, stub.describe_cluster(request(Default::default(), limit))).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::RequestTimedOut));
        assert!(!error.is_definite() && error.is_retriable(), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_to_addresses_that_were_left_are_closed() {
        let connections = Connections::new(&ClientConfig::new(["127.0.0.1:1"]));
        for address in ["127.0.0.1:1", "127.0.0.1:2"] {
            connections.channel(address).unwrap();
        }
        tokio::time::advance(MAX_AGE + Duration::from_secs(1)).await;
        connections.channel("127.0.0.1:3").unwrap();
        connections.leave(|address| address == "127.0.0.1:1");
        let mut kept: Vec<String> = connections.channels.lock().unwrap().keys().cloned().collect();
        kept.sort_unstable();
        assert_eq!(kept, ["127.0.0.1:1", "127.0.0.1:3"]);
    }
}
