//! Changes of requests, and requests and settings made of pieces.

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use onceward_http::inbox::{CertificateError, FetchCertificate, Signed, SourceConfig};
use onceward_sim::random::Random;

use super::empty;
use crate::Trouble;

/// The name of the runs with random settings.
pub(super) const SETTINGS: &str = "settings";

/// Pieces that parsers treat specially.
const PIECES: [&str; 32] = [
    "v1=",
    "v1,",
    "v1a,",
    "t=",
    "ts=",
    "h1=",
    "sha256=",
    "v0=",
    ",",
    ";",
    " ",
    "=",
    ".",
    "|",
    "\"",
    "{",
    "}",
    "[",
    "]",
    ":",
    "\\u0000",
    "\\ud800",
    "%FF",
    "%00",
    "&",
    "+",
    "1769860800",
    "2026-01-31T12:00:00Z",
    "null",
    "-1",
    "whsec_",
    "bodySHA256=",
];
const HEADERS: [&str; 20] = [
    "stripe-signature",
    "x-hub-signature-256",
    "webhook-signature",
    "webhook-id",
    "webhook-timestamp",
    "svix-signature",
    "svix-id",
    "x-slack-signature",
    "x-slack-request-timestamp",
    "x-twilio-signature",
    "paypal-transmission-sig",
    "paypal-cert-url",
    "paypal-auth-algo",
    "paypal-transmission-id",
    "paypal-transmission-time",
    "authorization",
    "content-type",
    "x-signature",
    "linear-signature",
    "x-signature-ed25519",
];
const TYPES: [&str; 5] = [
    "application/json",
    "application/x-www-form-urlencoded",
    "application/cloudevents+json",
    "application/cloudevents-batch+json",
    "text/plain",
];
/// Settings for every parser of them. `#` is replaced by random text.
const CONFIGS: [&str; 14] = [
    "signature = { header = \"X-Signature\" }\nid = [\"$.#\"]",
    "signature = { header = \"X-Signature\" }\nid = [\"header:#\", \"form:#\", \"$.a + $.b\"]",
    "signature = { header = \"X-Signature\", prefix = \"#\", encoding = \"base64\" }\nsigned = \"#{body}\"",
    "signature = { header = \"X-Signature\", encoding = \"base64url\" }\nsigned = \"{timestamp}{body}\"\n\
     timestamp = { header = \"webhook-timestamp\", unit = \"rfc3339\" }",
    "signature = { header = \"X-Signature\" }\nsigned = \"{#}{body}\"",
    "signature = { header = \"X-Signature\", separator = \"#\", pair = \"#\", versions = { v1 = \"hmac-sha512\" } }",
    "signature = { header = \"X-Signature\", key = \"spki\", algorithm = \"ecdsa-p256\" }",
    "signature = { header = \"X-Signature\", key = \"hex\", algorithm = \"ed25519\" }",
    "signature = { header = \"webhook-signature\", key = \"standard\", separator = \" \", pair = \",\", \
     versions = { v1 = \"hmac-sha256\", v1a = \"ed25519\" } }",
    "signature = { header = \"X-Signature\" }\ntimestamp = { path = \"$.#\", unit = \"ms\", optional = true }",
    "preset = \"sns\"\ntopics = [\"arn:aws:sns:us-east-1:1:t\"]",
    "preset = \"paypal\"\nwebhook_id = \"#\"",
    "preset = \"twilio\"",
    "preset = \"cloudevents\"",
];
const CERTIFICATE: &[u8] = include_bytes!("../../../../../../onceward-http/src/inbox/sample-certificate.pem");

/// Makes changes. The same seed makes the same ones.
pub(super) struct Mutator<'a> {
    pub(super) random: &'a mut Random,
    pub(super) samples: &'a [Signed],
}

impl Mutator<'_> {
    /// Changes one thing about a request.
    pub(super) fn change(&mut self, request: &mut Signed, now_ms: &mut i64) {
        match self.random.below(16) {
            0..=5 => self.change_header(request),
            6..=10 => {
                let mut body = request.body.to_vec();
                self.change_bytes(&mut body);
                request.body = body.into();
            }
            11 => {
                let mut url = request.url.clone().into_bytes();
                self.change_bytes(&mut url);
                request.url = String::from_utf8_lossy(&url).into_owned();
            }
            12 => self.exchange(request),
            13 => {
                let name = HeaderName::from_static(HEADERS[self.random.index(HEADERS.len())]);
                let value = self.header_value();
                request.headers.append(name, value);
            }
            14 => {
                let kind = HeaderValue::from_static(TYPES[self.random.index(TYPES.len())]);
                request.headers.insert("content-type", kind);
            }
            _ => {
                let span = 1_u64 << self.random.below(40);
                let distance = i64::try_from(self.random.below(span)).unwrap_or(0);
                *now_ms += if self.random.permille(500) { distance } else { -distance };
            }
        }
    }

    fn change_header(&mut self, request: &mut Signed) {
        if request.headers.is_empty() {
            return;
        }
        let at = self.random.index(request.headers.keys_len());
        let Some(name) = request.headers.keys().nth(at).cloned() else { return };
        match self.random.below(8) {
            0 => drop(request.headers.remove(&name)),
            1 => {
                if let Some(value) = request.headers.get(&name).cloned() {
                    request.headers.append(name, value);
                }
            }
            _ => {
                let mut value =
                    request.headers.get(&name).map(|value| value.as_bytes().to_vec()).unwrap_or_default();
                self.change_bytes(&mut value);
                value.retain(|byte| *byte >= 0x20 && *byte != 0x7f);
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    request.headers.insert(name, value);
                }
            }
        }
    }

    /// Takes the body, the URL or a header from another request that was signed.
    fn exchange(&mut self, request: &mut Signed) {
        if self.samples.is_empty() {
            return;
        }
        let other = &self.samples[self.random.index(self.samples.len())];
        match self.random.below(3) {
            0 => request.body = other.body.clone(),
            1 => request.url.clone_from(&other.url),
            _ => {
                let at = self.random.index(other.headers.keys_len());
                if let Some((name, value)) = other.headers.iter().nth(at) {
                    request.headers.insert(name.clone(), value.clone());
                }
            }
        }
    }

    fn change_bytes(&mut self, bytes: &mut Vec<u8>) {
        let at = self.random.index(bytes.len() + 1);
        match self.random.below(9) {
            0 => bytes.truncate(at),
            1 => {
                let piece = self.piece();
                bytes.splice(at..at, piece);
            }
            2 if at < bytes.len() => drop(bytes.remove(at)),
            3 => {
                let end = at + self.random.index(bytes.len() - at + 1);
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            4 if at < bytes.len() => bytes[at] = u8::try_from(self.random.below(256)).unwrap_or(0),
            5 if at < bytes.len() => bytes[at] = bytes[at].to_ascii_uppercase(),
            6 => {
                let end = at + self.random.index(bytes.len() - at + 1);
                bytes.drain(at..end);
            }
            7 => bytes.insert(at, b'0'),
            _ if at < bytes.len() => bytes[at] ^= 1 << self.random.below(8),
            _ => bytes.push(b' '),
        }
    }

    fn piece(&mut self) -> Vec<u8> {
        if self.random.permille(800) {
            return PIECES[self.random.index(PIECES.len())].as_bytes().to_vec();
        }
        let length = self.random.index(40);
        (0..length).map(|_| u8::try_from(self.random.below(256)).unwrap_or(0)).collect()
    }

    fn text(&mut self) -> Vec<u8> {
        let pieces = self.random.index(6);
        (0..pieces).flat_map(|_| self.piece()).collect()
    }

    fn header_value(&mut self) -> HeaderValue {
        let mut text = self.text();
        text.retain(|byte| *byte >= 0x20 && *byte != 0x7f);
        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static(""))
    }

    /// A request made of pieces.
    pub(super) fn request(&mut self) -> Signed {
        let mut request = empty("https://example.com/");
        for _ in 0..self.random.below(8) {
            let name = HeaderName::from_static(HEADERS[self.random.index(HEADERS.len())]);
            let value = self.header_value();
            request.headers.append(name, value);
        }
        if self.random.permille(500) {
            let kind = HeaderValue::from_static(TYPES[self.random.index(TYPES.len())]);
            request.headers.insert("content-type", kind);
        }
        let text = self.text();
        request.body = text.into();
        request
    }

    /// Settings, and a secret.
    pub(super) fn settings(&mut self) -> Result<(SourceConfig, String), Trouble> {
        let mut text = CONFIGS[self.random.index(CONFIGS.len())].to_owned();
        while text.contains('#') {
            let piece = String::from_utf8_lossy(&self.piece()).into_owned();
            let plain = |char: &char| !char.is_control() && !['"', '\\', '#'].contains(char);
            text = text.replacen('#', &piece.chars().filter(plain).collect::<String>(), 1);
        }
        let mut config: SourceConfig = toml::from_str(&text)?;
        config.secrets = vec!["$SECRET".to_owned()];
        let mut secret = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_vec();
        for _ in 0..self.random.below(3) {
            self.change_bytes(&mut secret);
        }
        Ok((config, String::from_utf8_lossy(&secret).into_owned()))
    }

    /// A certificate, usually damaged.
    pub(super) fn certificate(&mut self) -> Damaged {
        let mut bytes = CERTIFICATE.to_vec();
        for _ in 0..self.random.below(3) {
            self.change_bytes(&mut bytes);
        }
        Damaged(bytes.into())
    }
}

pub(super) struct Damaged(Bytes);

#[async_trait]
impl FetchCertificate for Damaged {
    async fn fetch(&self, _url: &str) -> Result<Bytes, CertificateError> {
        Ok(self.0.clone())
    }
}
