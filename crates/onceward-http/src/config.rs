//! The sections of `onceward.toml` that configure the server: `[serve]`, `[tenant.NAME]`, `[upstream.NAME]`,
//! `[hook.NAME]`.
//!
//! - `sections`: reads them setting by setting, and reports every mistake with its line.

mod sections;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use onceward::{InvalidInput, Policy};
use serde::Deserialize;

pub use crate::gateway::config::{Upstream, UpstreamConfig};
pub use crate::gateway::rules::{Format, Part, Placement, Probe, Replay, Rule, Sign, Verify};
use crate::inbox;
use crate::inbox::HostEnvironment;
pub use crate::inbox::config::{HandlerConfig, HandlerProbe, HookConfig, KeepingConfig};
use crate::limits::Limits;
use crate::mistake::Mistake;
pub use crate::tenants::TenantConfig;
use crate::time::span;

/// The largest answer of an upstream that can be stored.
const MAX_STORED: usize = onceward::MAX_RESULT / 2;

/// How the server is configured. The default serves one tenant without tokens and no upstreams.
///
/// ```
/// let policy = onceward::Policy::parse("[serve]\nmax_connections = 64\n")?;
/// let config = onceward_http::Config::from_policy(&policy)?;
/// assert!(config.upstreams.is_empty());
/// assert_eq!(config.serve.limits().connections, 64);
/// # Ok::<(), onceward::InvalidInput>(())
/// ```
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Config {
    /// The listener and its limits.
    pub serve: ServeConfig,
    /// Who may use the server, by name. Without tenants, every caller shares one.
    #[serde(rename = "tenant")]
    pub tenants: BTreeMap<String, TenantConfig>,
    /// The APIs behind the gateway, by name.
    #[serde(rename = "upstream")]
    pub upstreams: BTreeMap<String, UpstreamConfig>,
    /// The sources of the webhook inbox, by name.
    #[serde(rename = "hook")]
    pub hooks: BTreeMap<String, HookConfig>,
    /// The rules for operations, by their names.
    #[serde(skip)]
    pub policy: Policy,
    /// Environment variables and commands, as far as the program allows them.
    #[serde(skip)]
    pub environment: HostEnvironment,
}

/// The `[serve]` section.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ServeConfig {
    /// The addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// The path of a Unix socket to listen on.
    pub socket: Option<PathBuf>,
    /// The certificate and key of the listeners, for TLS.
    pub tls: Option<TlsConfig>,
    /// Who may read `/metrics`.
    pub metrics: MetricsAccess,
    /// The hashes of the tokens with which `/metrics` can be read: `sha256:…`.
    pub metrics_tokens: Vec<String>,
    /// The longest request body, in bytes.
    pub max_body: Option<usize>,
    /// How many bytes all request bodies may take together.
    pub max_bodies: Option<usize>,
    /// The most connections.
    pub max_connections: Option<usize>,
    /// How long a client has to send the head of a request, and how long it may be idle between two.
    #[serde(deserialize_with = "span")]
    pub header_timeout: Option<Duration>,
    /// How long a client has to send a request body.
    #[serde(deserialize_with = "span")]
    pub body_timeout: Option<Duration>,
    /// How long requests in flight may take after a signal to end.
    #[serde(deserialize_with = "span")]
    pub drain_timeout: Option<Duration>,
}

/// Who may read `/metrics`, whose numbers are those of all tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum MetricsAccess {
    /// Programs that use a loopback address or the Unix socket. At other addresses they need a token.
    #[default]
    Local,
    /// Only programs with a token.
    Token,
    /// Every program that reaches the server.
    Open,
}

/// The files of a TLS certificate.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TlsConfig {
    /// The certificate chain, as PEM.
    pub cert: PathBuf,
    /// Its private key, as PEM.
    pub key: PathBuf,
}

impl TlsConfig {
    /// The certificate chain and the private key in these files, as PEM.
    #[must_use]
    pub fn new(cert: PathBuf, key: PathBuf) -> Self {
        Self { cert, key }
    }
}

impl ServeConfig {
    /// The limits of the listeners.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let default = Limits::default();
        let ms = |span: Option<Duration>, default: u64| {
            span.map_or(default, |span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
        };
        Limits {
            body_bytes: self.max_body.unwrap_or(default.body_bytes),
            bodies_bytes: self.max_bodies.unwrap_or(default.bodies_bytes),
            connections: self.max_connections.unwrap_or(default.connections),
            header_ms: ms(self.header_timeout, default.header_ms),
            body_ms: ms(self.body_timeout, default.body_ms),
            ..default
        }
    }

    fn mistakes(&self) -> Vec<Mistake> {
        let limits = self.limits();
        let zero = [
            ("max_body", limits.body_bytes == 0),
            ("max_connections", limits.connections == 0),
            ("header_timeout", limits.header_ms == 0),
            ("body_timeout", limits.body_ms == 0),
        ];
        let zero = zero.into_iter().filter(|(_, is_zero)| *is_zero);
        let mut mistakes: Vec<Mistake> = zero
            .map(|(name, _)| {
                Mistake::at(["serve", name], format!("[serve] {name} is 0, so nothing could be served"))
            })
            .collect();
        if limits.bodies_bytes < limits.body_bytes {
            let what = "[serve] max_bodies is less than max_body, so the longest body never fits";
            mistakes.push(Mistake::at(["serve", "max_bodies"], what));
        }
        mistakes
    }
}

impl Config {
    /// Reads the server's sections of a policy, and keeps the policy for the rules of operations.
    ///
    /// # Errors
    /// Names every mistake with its section and line. Values are not repeated: they may be secrets.
    pub fn from_policy(policy: &Policy) -> Result<Self, InvalidInput> {
        let config = Self::read(policy.server_sections(), |path| policy.line(path))?;
        Ok(Self { policy: policy.clone(), ..config })
    }

    /// Reads the server's sections of a policy: see [`onceward::Policy::server_sections`].
    ///
    /// # Errors
    /// Names every mistake with its section. Values are not repeated: they may be secrets.
    pub fn from_sections(sections: toml::Table) -> Result<Self, InvalidInput> {
        Self::read(sections, |_| None)
    }

    fn read(sections: toml::Table, line: impl Fn(&[&str]) -> Option<usize>) -> Result<Self, InvalidInput> {
        if let Some(invalid) = Mistake::all(sections::mistakes(&sections), &line) {
            return Err(invalid);
        }
        let config: Self =
            sections.try_into().map_err(|error: toml::de::Error| InvalidInput::new(error.message()))?;
        let mut mistakes = config.serve.mistakes();
        mistakes.extend(config.upstream_mistakes());
        let is_tenant = |name: &str| config.tenants.contains_key(name);
        let most = config.serve.limits().body_bytes;
        mistakes.extend(inbox::config::mistakes(&config.hooks, is_tenant, !config.tenants.is_empty(), most));
        Mistake::all(mistakes, line).map_or(Ok(config), Err)
    }

    /// Settings of upstreams that are too large, or that two of them share.
    fn upstream_mistakes(&self) -> Vec<Mistake> {
        let mut mistakes = Vec::new();
        let mut before: Vec<(&str, &Upstream)> = Vec::new();
        for (name, config) in &self.upstreams {
            let own = &config.upstream;
            let mut note = |setting: &str, what: String| {
                let what = format!("[upstream.{name}] {setting}: {what}");
                mistakes.push(Mistake::at(["upstream", name, setting], what));
            };
            if own.max_stored.is_some_and(|bytes| bytes > MAX_STORED) {
                note("max_stored", format!("the most is {MAX_STORED} bytes"));
            }
            let host = own.host.as_ref().map(|host| host.to_ascii_lowercase());
            let port = own.port.filter(|port| *port != 0);
            for (other, upstream) in &before {
                let same_host = |host: &String| {
                    upstream.host.as_ref().is_some_and(|other| other.eq_ignore_ascii_case(host))
                };
                if host.as_ref().is_some_and(same_host) {
                    note(
                        "host",
                        format!("[upstream.{other}] has the same host, so one would never be reached"),
                    );
                }
                if port.is_some() && upstream.port == port {
                    note(
                        "port",
                        format!("[upstream.{other}] has the same port, so one would never be reached"),
                    );
                }
            }
            let named = host.as_deref().and_then(|host| host.strip_suffix(".localhost"));
            if let Some(other) = named.filter(|other| other != name && self.upstreams.contains_key(*other)) {
                note(
                    "host",
                    format!("that is the host of [upstream.{other}], so this one would never be reached"),
                );
            }
            before.push((name, own));
        }
        mistakes
    }
}
