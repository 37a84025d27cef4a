//! Changes of requests, and requests and settings made of pieces.

use std::sync::OnceLock;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use onceward_http::inbox::{Sample, Signed, SourceConfig};
use onceward_sim::random::Random;

use crate::Trouble;

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
const CONFIGS: [&str; 10] = [
    "signature = { header = \"X-Signature\" }\nid = [\"$.#\"]",
    "signature = { header = \"X-Signature\" }\nid = [\"header:#\", \"form:#\", \"$.a + $.b\"]",
    "signature = { header = \"X-Signature\", prefix = \"#\", encoding = \"base64\" }\nsigned = \"#{body}\"",
    "signature = { header = \"X-Signature\", encoding = \"base64url\" }\nsigned = \"{timestamp}{body}\"\n\
     timestamp = { header = \"webhook-timestamp\", unit = \"rfc3339\" }",
    "signature = { header = \"X-Signature\" }\nsigned = \"{#}{body}\"",
    "signature = { header = \"X-Signature\", separator = \"#\", pair = \"#\", versions = { v1 = \"hmac-sha512\" } }",
    "signature = { header = \"webhook-signature\", key = \"standard\", separator = \" \", pair = \",\", \
     versions = { v1 = \"hmac-sha256\", v1a = \"ed25519\" } }",
    "signature = { header = \"X-Signature\" }\ntimestamp = { path = \"$.#\", unit = \"ms\", optional = true }",
    "preset = \"twilio\"",
    "preset = \"cloudevents\"",
];
/// Settings with public keys. A key takes a thousand times longer to make than settings to read, so they are rarer.
const KEY_CONFIGS: [&str; 4] = [
    "signature = { header = \"X-Signature\", key = \"spki\", algorithm = \"ecdsa-p256\" }",
    "signature = { header = \"X-Signature\", key = \"hex\", algorithm = \"ed25519\" }",
    "preset = \"sns\"\ntopics = [\"arn:aws:sns:us-east-1:1:t\"]",
    "preset = \"paypal\"\nwebhook_id = \"#\"",
];
const KEY_CONFIGS_PERMILLE: u64 = 5;
/// Values that readers of JSON treat specially.
const VALUES: [&str; 20] = [
    "null",
    "true",
    "0",
    "-0",
    "1.5",
    "1e999",
    "-1e-999",
    "18446744073709551616",
    "9223372036854775807",
    "1769860800000",
    "\"\"",
    "\" \"",
    "\"\\ud800\"",
    "\"\\u0000\"",
    "\"2026-01-31T12:00:00+14:00\"",
    "\"é\"",
    "[]",
    "[null,[],{}]",
    "{}",
    "{\"id\":{\"id\":\"x\"}}",
];
/// Pieces of addresses that parsers read in different ways.
const ADDRESS_PIECES: [&str; 24] = [
    "@",
    ":443",
    ":",
    "#",
    "?",
    "/",
    "\\",
    "..",
    "%2e",
    "%00",
    "%40",
    "evil.example",
    ".evil.example",
    "sns.s3.amazonaws.com",
    ".amazonaws.com",
    "api.paypal.com",
    "http://",
    "https://",
    "//",
    "[::1]",
    "127.0.0.1",
    " ",
    "\t",
    "&TopicArn=x",
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
            0..=5 => self.change_header(&mut request.headers),
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

    /// Changes a request before it is signed: its content, its unsigned headers, its id.
    pub(super) fn change_content(&mut self, sample: &mut Sample) {
        let mut body = sample.body.to_vec();
        for _ in 0..=self.random.below(3) {
            match self.random.below(8) {
                0..=3 => self.change_value(&mut body),
                4 | 5 => self.change_bytes(&mut body),
                6 => {
                    let kind = HeaderValue::from_static(TYPES[self.random.index(TYPES.len())]);
                    sample.headers.insert("content-type", kind);
                }
                _ => {
                    self.change_header(&mut sample.headers);
                    let mut id = std::mem::take(&mut sample.id).into_bytes();
                    self.change_bytes(&mut id);
                    // Spaces around the value of a header are not part of it, so a vendor cannot sign them.
                    sample.id = String::from_utf8_lossy(&id).trim().to_owned();
                }
            }
        }
        sample.body = body.into();
    }

    /// Replaces a value in a JSON text, or adds a field.
    fn change_value(&mut self, body: &mut Vec<u8>) {
        let from = self.random.index(body.len() + 1);
        let Some(at) = body[from..].iter().position(|byte| b":,[{".contains(byte)) else { return };
        let at = from + at + 1;
        let value = VALUES[self.random.index(VALUES.len())];
        if self.random.permille(300) {
            let depth = self.random.index(300);
            let nested = ["[".repeat(depth), value.to_owned(), "]".repeat(depth)].concat();
            body.splice(at..at, nested.into_bytes());
            return;
        }
        let end = body[at..].iter().position(|byte| b",}]".contains(byte)).map_or(body.len(), |end| at + end);
        body.splice(at..end, value.bytes());
    }

    /// `POST`, and sometimes another method.
    pub(super) fn method(&mut self) -> Method {
        match self.random.below(64) {
            0 => Method::OPTIONS,
            1 => Method::PUT,
            _ => Method::POST,
        }
    }

    /// An address like this one.
    pub(super) fn address(&mut self, like: &str) -> Vec<u8> {
        let mut url = like.as_bytes().to_vec();
        for _ in 0..=self.random.below(3) {
            let at = self.random.index(url.len() + 1);
            match self.random.below(4) {
                0 => self.change_bytes(&mut url),
                // Around the host, where it matters.
                1 => {
                    let at = at.min(8 + self.random.index(24)).min(url.len());
                    let piece = ADDRESS_PIECES[self.random.index(ADDRESS_PIECES.len())];
                    url.splice(at..at, piece.bytes());
                }
                _ => {
                    let piece = ADDRESS_PIECES[self.random.index(ADDRESS_PIECES.len())];
                    url.splice(at..at, piece.bytes());
                }
            }
        }
        url
    }

    fn change_header(&mut self, headers: &mut HeaderMap) {
        if headers.is_empty() {
            return;
        }
        let at = self.random.index(headers.keys_len());
        let Some(name) = headers.keys().nth(at).cloned() else { return };
        match self.random.below(8) {
            0 => drop(headers.remove(&name)),
            1 => {
                if let Some(value) = headers.get(&name).cloned() {
                    headers.append(name, value);
                }
            }
            _ => {
                let mut value = headers.get(&name).map(|value| value.as_bytes().to_vec()).unwrap_or_default();
                self.change_bytes(&mut value);
                value.retain(|byte| *byte >= 0x20 && *byte != 0x7f);
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    headers.insert(name, value);
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

    pub(super) fn change_bytes(&mut self, bytes: &mut Vec<u8>) {
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
        let (headers, body) = (HeaderMap::new(), Bytes::new());
        let mut request = Signed { url: "https://example.com/".to_owned(), headers, body };
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

    /// Settings without secrets.
    pub(super) fn settings(&mut self) -> Result<SourceConfig, Trouble> {
        let mut text = if self.random.permille(KEY_CONFIGS_PERMILLE) {
            KEY_CONFIGS[self.random.index(KEY_CONFIGS.len())].to_owned()
        } else {
            CONFIGS[self.random.index(CONFIGS.len())].to_owned()
        };
        while text.contains('#') {
            let piece = String::from_utf8_lossy(&self.piece()).into_owned();
            let plain = |char: &char| !char.is_control() && !['"', '\\', '#'].contains(char);
            text = text.replacen('#', &piece.chars().filter(plain).collect::<String>(), 1);
        }
        Ok(toml::from_str(&text)?)
    }

    /// A certificate, usually damaged: half of them as DER, the others as PEM.
    pub(super) fn certificate(&mut self) -> Bytes {
        static DER: OnceLock<Vec<u8>> = OnceLock::new();
        let der = DER.get_or_init(|| {
            let text = String::from_utf8_lossy(CERTIFICATE);
            let text: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
            from_base64(text.trim_end_matches('=')).unwrap_or_default()
        });
        let mut bytes = if self.random.permille(900) { der.clone() } else { CERTIFICATE.to_vec() };
        for _ in 0..self.random.below(4) {
            self.change_bytes(&mut bytes);
        }
        bytes.into()
    }
}

/// Reads base64 without its padding.
pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for letter in text.bytes() {
        let value = LETTERS.iter().position(|known| *known == letter)?;
        bits = bits << 6 | u32::try_from(value).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    Some(bytes)
}
