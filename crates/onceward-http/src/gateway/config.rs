//! The `[upstream.NAME]` sections.

use std::collections::BTreeMap;

use onceward::InvalidInput;
use serde::Deserialize;

use super::models::dialect::ModelApi;
use super::rules::Rule;

/// An API behind the gateway.
///
/// ```
/// let policy = onceward::Policy::parse("[upstream.stripe]\nattempts = 3\n")?;
/// let config = onceward_http::Config::from_sections(policy.server_sections())?;
/// assert_eq!(config.upstreams["stripe"].rule.attempts, Some(3));
/// # Ok::<(), onceward::InvalidInput>(())
/// ```
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(try_from = "toml::Table")]
#[non_exhaustive]
pub struct UpstreamConfig {
    /// The API's own settings.
    pub upstream: Upstream,
    /// Settings for all of its requests.
    pub rule: Rule,
    /// Settings for some of its requests. The first rule that fits is used.
    pub rules: Vec<Rule>,
}

/// What concerns an API as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Upstream {
    /// The address of the API. Default: that of the preset.
    pub url: Option<String>,
    /// The vendor's rules. Default: the preset with the upstream's name, if there is one; `none` is no preset.
    pub preset: Option<String>,
    /// A host name under which it answers, besides `NAME.localhost`.
    pub host: Option<String>,
    /// A port of its own.
    pub port: Option<u16>,
    /// Whether it may have a private, loopback or link-local address.
    pub allow_private: bool,
    /// Headers that do not identify the caller.
    pub ignore_headers: Vec<String>,
    /// The headers of checks that are resumed after a restart, when the caller's own are not known. A value that
    /// begins with `@` names a file with it.
    pub check_headers: BTreeMap<String, String>,
    /// Further headers that say what a request does, as its path and body do.
    pub action_headers: Vec<String>,
    /// The only headers that identify the caller.
    pub principal_headers: Option<Vec<String>>,
    /// The largest body of a mutating request, in bytes.
    pub max_request: Option<u64>,
    /// The largest answer that is stored, in bytes.
    pub max_stored: Option<usize>,
    /// The kind of model API, if it serves models. Default: that of the preset.
    pub models: Option<ModelApi>,
    /// What happens to a generation whose clients have left: `finish`, `cancel`, or a time after which it is cancelled.
    pub unattended: Option<String>,
    /// The most generations of a tenant that continue without a client.
    pub max_unattended: Option<usize>,
    /// How long an answer of a model may be silent.
    pub idle: Option<String>,
    /// The largest answer of a model, in bytes.
    pub max_answer: Option<usize>,
}

/// The settings of [`Upstream`]; all others are those of a [`Rule`].
const OWN: [&str; 16] = [
    "url",
    "preset",
    "host",
    "port",
    "allow_private",
    "ignore_headers",
    "check_headers",
    "action_headers",
    "principal_headers",
    "max_request",
    "max_stored",
    "models",
    "unattended",
    "max_unattended",
    "idle",
    "max_answer",
];

impl TryFrom<toml::Table> for UpstreamConfig {
    type Error = InvalidInput;

    fn try_from(mut table: toml::Table) -> Result<Self, InvalidInput> {
        let invalid = |error: toml::de::Error| InvalidInput::new(error.message());
        let rules = match table.remove("rule") {
            Some(rules) => rules.try_into().map_err(invalid)?,
            None => Vec::new(),
        };
        let own: toml::Table =
            OWN.iter().filter_map(|name| Some(((*name).to_owned(), table.remove(*name)?))).collect();
        Ok(Self {
            upstream: own.try_into().map_err(invalid)?,
            rule: table.try_into().map_err(invalid)?,
            rules,
        })
    }
}
