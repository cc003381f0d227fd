//! The addresses, certificates and timeouts with which a client reaches a cluster.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::error::{Error, Result};

/// Longer durations are shortened to this: adding it to the current time does not overflow, and a gRPC deadline can encode it.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// The addresses, certificates and timeouts with which a client reaches a cluster.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    pub(crate) bootstrap: Vec<String>,
    pub(crate) request_timeout: Duration,
    pub(crate) timeout: Duration,
    pub(crate) tls: Option<TlsFiles>,
}

impl ClientConfig {
    /// Returns a configuration with the addresses (`host:port`) of any brokers or controllers of the cluster.
    pub fn new<A: Into<String>>(bootstrap: impl IntoIterator<Item = A>) -> Self {
        ClientConfig {
            bootstrap: bootstrap.into_iter().map(Into::into).collect(),
            request_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
            tls: None,
        }
    }

    /// Returns the configuration that the environment names: `PACELINE_BOOTSTRAP_SERVERS` (addresses separated by commas;
    /// 127.0.0.1:9102 without it) and, for TLS, `PACELINE_SSL_CA_FILE`, `PACELINE_SSL_CERTIFICATE_FILE` and
    /// `PACELINE_SSL_KEY_FILE`.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let servers = variable("PACELINE_BOOTSTRAP_SERVERS").unwrap_or_else(|| "127.0.0.1:9102".to_owned());
        let mut config = ClientConfig::new(servers.split(',').map(str::trim));
        let ca = variable("PACELINE_SSL_CA_FILE");
        let identity = (variable("PACELINE_SSL_CERTIFICATE_FILE"), variable("PACELINE_SSL_KEY_FILE"));
        config.tls = match (ca, identity) {
            (None, (None, None)) => None,
            (Some(ca), (None, None)) => Some(TlsFiles::new(ca)),
            (Some(ca), (Some(certificate), Some(key))) => Some(TlsFiles::new(ca).identity(certificate, key)),
            _ => {
                return Err(Error::InvalidArgument(
                    "TLS needs PACELINE_SSL_CA_FILE, and PACELINE_SSL_CERTIFICATE_FILE and PACELINE_SSL_KEY_FILE together"
                        .to_owned(),
                ));
            }
        };
        Ok(config)
    }

    /// Sets the timeout of one request; 10 s by default.
    #[must_use]
    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.request_timeout = limit;
        self
    }

    /// Sets the timeout of one call of this library including its retries; 30 s by default. Deliveries and polls have their
    /// own timeouts.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Connects with TLS.
    #[must_use]
    pub fn tls(mut self, files: TlsFiles) -> Self {
        self.tls = Some(files);
        self
    }

    /// Fails for an invalid address or a file that cannot be read.
    pub(crate) fn check(&self) -> Result<()> {
        if self.bootstrap.is_empty() {
            return Err(Error::InvalidArgument("the list of bootstrap addresses is empty".to_owned()));
        }
        for address in &self.bootstrap {
            let has_host = |host: &str| {
                if host.contains(':') { host.starts_with('[') && host.ends_with(']') } else { !host.is_empty() }
            };
            let port = address.rsplit_once(':').filter(|(host, _)| has_host(host)).map(|(_, port)| port.parse::<u16>());
            if !matches!(port, Some(Ok(_))) {
                return Err(Error::InvalidArgument(format!(
                    "the bootstrap address {address:?} is not host:port, an IPv6 host in brackets"
                )));
            }
        }
        self.tls.as_ref().map_or(Ok(()), |files| files.load().map(|_| ()))
    }
}

/// PEM files for TLS. They are read for every new connection, so a renewed certificate is used without a restart.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    ca: PathBuf,
    identity: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// Trusts servers with certificates of this authority.
    pub fn new(ca_file: impl Into<PathBuf>) -> Self {
        TlsFiles { ca: ca_file.into(), identity: None }
    }

    /// Identifies this client with a certificate and its key.
    #[must_use]
    pub fn identity(mut self, certificate_file: impl Into<PathBuf>, key_file: impl Into<PathBuf>) -> Self {
        self.identity = Some((certificate_file.into(), key_file.into()));
        self
    }

    pub(crate) fn load(&self) -> Result<ClientTlsConfig> {
        let mut config =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read_pem(&self.ca, "CERTIFICATE")?));
        if let Some((certificate, key)) = &self.identity {
            let identity = Identity::from_pem(read_pem(certificate, "CERTIFICATE")?, read_pem(key, "PRIVATE KEY")?);
            config = config.identity(identity);
        }
        Ok(config)
    }
}

fn read_pem(path: &Path, kind: &str) -> Result<String> {
    let text = fs::read_to_string(path)
        .map_err(|error| Error::InvalidArgument(format!("the TLS file {} cannot be read: {error}", path.display())))?;
    if !text.contains(&format!("{kind}-----")) {
        return Err(Error::InvalidArgument(format!("the TLS file {} has no {}", path.display(), kind.to_lowercase())));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(result: Result<impl Sized>) -> String {
        result.err().expect("a bad configuration is refused").to_string()
    }

    #[test]
    fn addresses_without_a_port_are_refused() {
        for address in ["localhost", "localhost:", ":9092", "localhost:x", "", "::1:9092"] {
            assert!(message(ClientConfig::new([address]).check()).contains("is not host:port"), "{address:?}");
        }
        assert!(message(ClientConfig::new(Vec::<String>::new()).check()).contains("empty"));
        assert!(ClientConfig::new(["localhost:9092", "[::1]:9092"]).check().is_ok());
    }

    #[test]
    fn tls_files_that_cannot_be_used_are_named() {
        let config = |ca: &str| ClientConfig::new(["localhost:9092"]).tls(TlsFiles::new(ca));
        assert!(message(config("/nowhere/ca.crt").check()).contains("/nowhere/ca.crt cannot be read"));
        let no_pem = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.lock");
        assert!(message(config(no_pem).check()).contains("has no certificate"));
    }

    #[test]
    fn the_environment_needs_certificate_and_key_together() {
        let with = |names: &'static [&str]| {
            ClientConfig::from_variables(move |name| names.contains(&name).then(|| "file".to_owned()))
        };
        assert!(with(&[]).unwrap().tls.is_none());
        assert_eq!(with(&[]).unwrap().bootstrap, ["127.0.0.1:9102"], "the first broker of `paceline dev up`");
        assert!(with(&["PACELINE_SSL_CA_FILE"]).unwrap().tls.is_some());
        assert!(with(&["PACELINE_SSL_CA_FILE", "PACELINE_SSL_KEY_FILE"]).is_err());
        assert!(with(&["PACELINE_SSL_CERTIFICATE_FILE", "PACELINE_SSL_KEY_FILE"]).is_err());
    }
}
