//! What can be configured about a source, and what a preset says about it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::time::span;

/// A source of webhooks. What it leaves out comes from its preset.
///
/// ```
/// use onceward_http::inbox::SourceConfig;
///
/// let config: SourceConfig = toml::from_str(r#"
///     preset = "stripe"
///     secrets = ["$STRIPE_WEBHOOK_SECRET", "@/run/secrets/stripe-webhook-old"]
/// "#)?;
/// assert_eq!(config.secrets.len(), 2);
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SourceConfig {
    /// The vendor. Default: the preset with the source's name.
    pub preset: Option<String>,
    /// Where the secrets are, for rotation several: `@FILE` or `$VARIABLE`. A request is authentic if its signature
    /// belongs to one of them. Public keys may be written directly.
    pub secrets: Vec<String>,
    /// The public URL of this source, if the vendor signs it. Default: the URL of the request.
    pub url: Option<String>,
    /// How far the signed time may be from now, in both directions. More than five minutes count only for the past.
    #[serde(deserialize_with = "span")]
    pub tolerance: Option<Duration>,
    /// Where the event's id is: the first place that has one. `$.path` in the JSON body, `header:NAME`, `form:FIELD`,
    /// or `signed` for the `{id}` of `signed`. Places that are joined by ` + ` are used together.
    pub id: Option<Vec<String>>,
    /// Where the kind of the event is, in the same notation.
    pub kind: Option<Vec<String>>,
    /// Where the time of the event is, in the same notation.
    pub time: Option<Vec<String>>,
    /// Headers that tell two events with equal content apart although they are not signed, such as a topic. Anyone who
    /// has seen a request can send it again with other values.
    pub distinct: Option<Vec<String>>,
    /// Top-level fields of the JSON body that differ between a request and its redelivery. They are not part of the
    /// digest.
    pub volatile: Option<Vec<String>>,
    /// Whether a request has one event or several.
    pub events: Option<Shape>,
    /// How the vendor tests an endpoint before it sends events.
    pub handshake: Option<Handshake>,
    /// Further headers for the handler.
    pub keep: Option<Vec<String>>,
    /// PayPal: the id of the webhook, which is part of what is signed.
    pub webhook_id: Option<String>,
    /// Amazon SNS: the topics whose messages are wanted, as ARNs. Any AWS account can send signed messages.
    pub topics: Vec<String>,
    /// The hosts of signing certificates.
    pub certificate_hosts: Option<Vec<String>>,
    /// CloudEvents: the origins that may send. Default: all that have the secret.
    pub origins: Vec<String>,
    /// Where the signatures are, and how they are made.
    pub signature: Option<SignatureConfig>,
    /// What is signed: text with `{body}`, `{timestamp}`, `{id}`, `{url}`, `{form}`, `{crc32}`, `{webhook_id}`.
    pub signed: Option<String>,
    /// Where the `{id}` of `signed` is: names of headers.
    pub signed_id: Option<Vec<String>>,
    /// Where the signed time is.
    pub timestamp: Option<TimestampConfig>,
}

/// Where the signatures of a request are.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SignatureConfig {
    /// The header, or several names of it of which a sender uses one.
    #[serde(deserialize_with = "one_or_more")]
    pub header: Vec<String>,
    /// The algorithm, if there is only one. Default: `hmac-sha256`.
    pub algorithm: Option<Algorithm>,
    /// How the bytes of a signature are written.
    pub encoding: Encoding,
    /// Text before the signature, such as `sha256=`.
    pub prefix: String,
    /// The text between two items of a header with several.
    pub separator: Option<String>,
    /// The text between the name and the value of an item.
    pub pair: Option<String>,
    /// The algorithm for each name of an item. Items with other names are ignored.
    pub versions: BTreeMap<String, Algorithm>,
    /// How a secret becomes the bytes of a key.
    pub key: KeyFormat,
    /// The header with the URL of the certificate.
    pub certificate: Option<String>,
    /// What the path of that URL begins with.
    pub certificate_path: String,
    /// Headers that must have these values.
    pub require: BTreeMap<String, String>,
}

/// Where the signed time is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TimestampConfig {
    /// The header, with as many names as that of the signature.
    #[serde(deserialize_with = "one_or_more")]
    pub header: Vec<String>,
    /// The name of an item in the header of the signature.
    pub item: Option<String>,
    /// A JSON path in the body.
    pub path: Option<String>,
    /// How it is written.
    pub unit: TimeUnit,
    /// Whether there are requests without it. Only for a time in the body, which cannot be removed from a signed one.
    pub optional: bool,
}

/// Whether a request has one event or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Shape {
    /// The request is the event.
    #[default]
    One,
    /// The body is a JSON array of events.
    Array,
    /// One event, or a batch of events, as CloudEvents defines them.
    Cloudevents,
    /// A message of Amazon SNS, which contains its signature.
    Sns,
}

/// How a vendor tests an endpoint before it sends events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Handshake {
    /// Slack sends a `challenge` that must be returned.
    Slack,
    /// Discord sends a PING.
    Discord,
    /// CloudEvents asks with `OPTIONS` whether it may send.
    Cloudevents,
}

/// How a time is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TimeUnit {
    /// Seconds since 1970.
    #[default]
    S,
    /// Milliseconds since 1970.
    Ms,
    /// `2026-01-31T12:00:00Z`.
    Rfc3339,
}

/// The algorithm of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Algorithm {
    /// HMAC with SHA-1. Only for vendors that use nothing better.
    HmacSha1,
    /// HMAC with SHA-256.
    HmacSha256,
    /// HMAC with SHA-384.
    HmacSha384,
    /// HMAC with SHA-512.
    HmacSha512,
    /// Ed25519.
    Ed25519,
    /// ECDSA on P-256 with SHA-256; signatures in ASN.1.
    EcdsaP256,
    /// RSA (PKCS #1 v1.5) with SHA-256 and a certificate that the vendor publishes.
    RsaSha256,
    /// RSA with SHA-1, as version 1 of Amazon SNS.
    RsaSha1,
    /// The secret itself, as a bearer token. Nothing is signed.
    Token,
}

/// How the bytes of a signature are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Encoding {
    /// Hexadecimal, in either case.
    #[default]
    Hex,
    /// Base64 with padding.
    Base64,
    /// Base64 for URLs, with padding or without.
    Base64url,
    /// As it is: for tokens.
    Text,
}

/// How a secret becomes the bytes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum KeyFormat {
    /// The bytes of the text.
    #[default]
    Text,
    /// Hexadecimal.
    Hex,
    /// Base64.
    Base64,
    /// Base64 after `whsec_`, or a public key after `whpk_`, as Standard Webhooks writes them.
    Standard,
    /// The base64 of a public key in DER (SubjectPublicKeyInfo), with or without the lines of PEM.
    Spki,
}

/// A name, or a list of them.
fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Names {
        One(String),
        More(Vec<String>),
    }
    Names::deserialize(deserializer).map(|names| match names {
        Names::One(name) => vec![name],
        Names::More(names) => names,
    })
}
