//! A request as it arrived, and what its source says about it.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

/// A request as it arrived: raw bytes, nothing parsed.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// Its method. Webhooks are sent with `POST`; CloudEvents asks with `OPTIONS` whether it may send.
    pub method: &'a Method,
    /// The whole URL as the sender sees it. Twilio and Square sign it. A source with a configured `url` does not use
    /// it.
    pub url: &'a str,
    /// All headers, in their order.
    pub headers: &'a HeaderMap,
    /// The body, byte for byte.
    pub body: &'a Bytes,
}

/// What a source says about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// Authentic events, usually one. SendGrid and CloudEvents send several in one request: they are accepted together
    /// or not at all. An empty list is a valid batch without events.
    Events(Vec<Event>),
    /// A handshake. Send the reply and record nothing.
    Challenge(Reply),
    /// Amazon SNS asks whether the endpoint wants the messages of a topic. The request is authentic, and the topic is
    /// one of the configured ones: visit the URL with [`super::Certificates::confirm`], then answer with 200. Record
    /// nothing.
    Confirm(Confirmation),
    /// Nothing in the request may be believed. Answer with [`Rejection::status`].
    Rejected(Rejection),
}

/// An authentic event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The vendor's id of the event, if it has one. At most 255 bytes; a longer one is replaced by its hash. If it is
    /// signed, events with equal ids from one source are the same event, even if their digests differ: a redelivery may
    /// contain newer counters. If it is not signed, other content under a known id is another event.
    pub id: Option<String>,
    /// SHA-256 of what was signed, without the timestamp: a redelivery has the same digest. Without an id, the digest
    /// is the identity. It does not contain the name of the source, so look it up by source.
    ///
    /// For an id that is not signed, an equal digest under a *new* id is a suspected replay: do not run it, and do not
    /// let it claim the new id.
    pub digest: [u8; 32],
    /// Whether the id is as authentic as the content. If not, anyone who has seen one request can send it again under
    /// another id, and only the digest tells.
    pub is_id_signed: bool,
    /// Whether the digest says which content it is. PayPal signs only a CRC-32 of the content, so its digest says which
    /// transmission it is.
    pub is_digest_of_content: bool,
    /// What kind of event it is, such as `invoice.paid`.
    pub kind: Option<String>,
    /// When it happened according to the vendor, in milliseconds since 1970. Not always signed: only for display and
    /// for ordering.
    pub occurred_ms: Option<i64>,
    /// The event, byte for byte. One element of the array, if there are several.
    pub body: Bytes,
    /// The type of the body.
    pub content_type: Option<String>,
    /// Headers that a handler needs, such as `X-GitHub-Event`. Signatures and credentials are not among them.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// An answer to a handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body.
    pub body: Bytes,
}

/// A subscription that waits for its confirmation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmation {
    /// The URL to visit: `https`, on a host of Amazon SNS, without a port or credentials.
    pub url: String,
    /// The topic: an ARN that is configured.
    pub topic: String,
}

/// Why a request is not believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The reason, for programs.
    pub reason: Reason,
    /// The status that the vendor expects: Discord insists on 401.
    pub status: StatusCode,
    /// The reason for people, with the name of the header or field in question. It does not contain secrets or
    /// signatures.
    pub words: String,
}

/// The reasons for a rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// The method is not `POST`.
    Method,
    /// A header or field that the signature needs is missing.
    Missing,
    /// Such a header or field occurs more than once, so two programs could read different ones.
    Duplicate,
    /// Such a header or field cannot be read.
    Malformed,
    /// There are signatures, but none of a version that is accepted here.
    Version,
    /// No signature belongs to this content and one of the secrets.
    Signature,
    /// The signed time is too long ago.
    Old,
    /// The signed time is in the future.
    Future,
    /// A part of the request that is needed is not covered by the signature.
    Unsigned,
    /// The certificate is not from a host of the vendor, or has expired.
    Certificate,
    /// The certificate could not be fetched. The vendor will send the request again.
    Unavailable,
    /// It is authentic, but from a topic or origin that is not configured here.
    NotConfigured,
    /// It is authentic, but not what the vendor documents.
    Body,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 13] = [
        Self::Method,
        Self::Missing,
        Self::Duplicate,
        Self::Malformed,
        Self::Version,
        Self::Signature,
        Self::Old,
        Self::Future,
        Self::Unsigned,
        Self::Certificate,
        Self::Unavailable,
        Self::NotConfigured,
        Self::Body,
    ];

    /// Its name in JSON and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Missing => "missing",
            Self::Duplicate => "duplicate",
            Self::Malformed => "malformed",
            Self::Version => "version",
            Self::Signature => "signature",
            Self::Old => "old",
            Self::Future => "future",
            Self::Unsigned => "unsigned",
            Self::Certificate => "certificate",
            Self::Unavailable => "unavailable",
            Self::NotConfigured => "not_configured",
            Self::Body => "body",
        }
    }

    /// The status of the answer. Every problem of authenticity is a 401, so that a forger learns nothing from it.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Body => StatusCode::BAD_REQUEST,
            Self::NotConfigured => StatusCode::FORBIDDEN,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Missing
            | Self::Duplicate
            | Self::Malformed
            | Self::Version
            | Self::Signature
            | Self::Old
            | Self::Future
            | Self::Unsigned
            | Self::Certificate => StatusCode::UNAUTHORIZED,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Rejection {
    /// A rejection with the usual status of its reason.
    pub fn new(reason: Reason, words: impl Into<String>) -> Self {
        Self { reason, status: reason.status(), words: words.into() }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}
