//! Signatures and times in headers.

use std::collections::BTreeMap;

use data_encoding::{BASE64, BASE64URL_NOPAD, HEXLOWER_PERMISSIVE};
use http::{HeaderMap, HeaderName};
use onceward::InvalidInput;
use serde_json::Value;
use serde_json_path::JsonPath;

use super::{needed, one};
use crate::inbox::judgement::{Reason, Rejection};
use crate::inbox::selectors::View;
use crate::inbox::settings::{Algorithm, Encoding, SignatureConfig, TimeUnit, TimestampConfig};

/// The most items of a header that are read.
const MAX_ITEMS: usize = 32;
/// The most digits of a time.
const MAX_DIGITS: usize = 15;

/// Where signatures are, and how they are written.
#[derive(Debug)]
pub(crate) struct Carrier {
    /// Names of the header, of which a sender uses one.
    pub(crate) names: Vec<HeaderName>,
    pub(crate) layout: Layout,
    pub(crate) encoding: Encoding,
}

/// What a header with signatures looks like.
#[derive(Debug)]
pub(crate) enum Layout {
    /// One signature after a prefix.
    One { prefix: String, algorithm: Algorithm },
    /// Several items with names.
    Items { separator: String, pair: String, versions: BTreeMap<String, Algorithm> },
}

/// The time that is signed.
#[derive(Debug)]
pub(crate) struct Timestamp {
    place: TimePlace,
    pub(crate) unit: TimeUnit,
    /// Whether there are requests without it.
    is_optional: bool,
}

#[derive(Debug)]
pub(crate) enum TimePlace {
    /// A header, with as many names as that of the signature.
    Header(Vec<HeaderName>),
    /// An item of the signature's header.
    Item(String),
    /// A field of the body.
    Path(Box<JsonPath>),
}

/// What a header with signatures contains.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Which of the header's names was used.
    pub(crate) family: usize,
    pub(crate) signatures: Vec<(Algorithm, Vec<u8>)>,
    /// The item with the time.
    time: Option<String>,
}

impl Carrier {
    pub(crate) fn new(config: &SignatureConfig) -> Result<Self, InvalidInput> {
        let names = header_names(&config.header)?;
        if names.is_empty() {
            return Err(InvalidInput::new("signature.header is missing: which header has the signature?"));
        }
        let layout = match (&config.separator, &config.pair, config.algorithm) {
            (None, None, algorithm) => Layout::One {
                prefix: config.prefix.clone(),
                algorithm: algorithm.unwrap_or(Algorithm::HmacSha256),
            },
            (Some(separator), Some(pair), None) if !separator.is_empty() && !pair.is_empty() => {
                Layout::Items {
                    separator: separator.clone(),
                    pair: pair.clone(),
                    versions: config.versions.clone(),
                }
            }
            _ => {
                let why = "signature needs either an algorithm, or separator, pair and versions";
                return Err(InvalidInput::new(why));
            }
        };
        Ok(Self { names, layout, encoding: config.encoding })
    }

    /// All algorithms that are accepted.
    pub(crate) fn algorithms(&self) -> Vec<Algorithm> {
        match &self.layout {
            Layout::One { algorithm, .. } => vec![*algorithm],
            Layout::Items { versions, .. } => versions.values().copied().collect(),
        }
    }

    /// The signatures of a request, at least one.
    pub(crate) fn read(&self, headers: &HeaderMap, time: Option<&Timestamp>) -> Result<Carried, Rejection> {
        let family = self.names.iter().position(|name| headers.contains_key(name)).unwrap_or(0);
        let name = &self.names[family];
        let text = needed(headers, name)?;
        match &self.layout {
            Layout::One { prefix, algorithm } => {
                let written = text.strip_prefix(prefix.as_str()).ok_or_else(|| {
                    let words = format!("the header {name} does not begin with {prefix:?}");
                    Rejection::new(Reason::Version, words)
                })?;
                let signature = self.decode(written).ok_or_else(|| unreadable(name))?;
                Ok(Carried { family, signatures: vec![(*algorithm, signature)], time: None })
            }
            Layout::Items { separator, pair, versions } => {
                let item = time.and_then(Timestamp::item);
                let items = text.split(separator.as_str()).map(str::trim).filter(|item| !item.is_empty());
                let items = items.map(|item| item.split_once(pair.as_str()).unwrap_or((item, "")));
                self.items(family, &items.collect::<Vec<_>>(), versions, item)
            }
        }
    }

    fn items(
        &self,
        family: usize,
        items: &[(&str, &str)],
        versions: &BTreeMap<String, Algorithm>,
        time_item: Option<&str>,
    ) -> Result<Carried, Rejection> {
        let name = &self.names[family];
        if items.len() > MAX_ITEMS {
            let words = format!("the header {name} has more than {MAX_ITEMS} items");
            return Err(Rejection::new(Reason::Malformed, words));
        }
        let mut carried = Carried { family, signatures: Vec::new(), time: None };
        let mut is_known = false;
        for (key, value) in items {
            if Some(*key) == time_item {
                if carried.time.replace((*value).to_owned()).is_some() {
                    let words = format!("the header {name} has several items {key}");
                    return Err(Rejection::new(Reason::Duplicate, words));
                }
            } else if let Some(algorithm) = versions.get(*key) {
                is_known = true;
                // Another item may be readable.
                carried.signatures.extend(self.decode(value).map(|signature| (*algorithm, signature)));
            }
        }
        if !is_known {
            let known = versions.keys().cloned().collect::<Vec<_>>().join(" or ");
            let words = format!("the header {name} has no signature of version {known}");
            return Err(Rejection::new(Reason::Version, words));
        }
        if carried.signatures.is_empty() { Err(unreadable(name)) } else { Ok(carried) }
    }

    fn decode(&self, text: &str) -> Option<Vec<u8>> {
        let bytes = match self.encoding {
            Encoding::Hex => HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok(),
            Encoding::Base64 => BASE64.decode(text.as_bytes()).ok(),
            Encoding::Base64url => BASE64URL_NOPAD.decode(text.trim_end_matches('=').as_bytes()).ok(),
            Encoding::Text => Some(text.as_bytes().to_vec()),
        };
        bytes.filter(|bytes| !bytes.is_empty())
    }

    /// Writes a signature as [`Self::read`] reads it.
    pub(crate) fn write(&self, algorithm: Algorithm, signature: &[u8], time: Option<(&str, &str)>) -> String {
        let written = match self.encoding {
            Encoding::Hex => HEXLOWER_PERMISSIVE.encode(signature),
            Encoding::Base64 => BASE64.encode(signature),
            Encoding::Base64url => BASE64URL_NOPAD.encode(signature),
            Encoding::Text => String::from_utf8_lossy(signature).into_owned(),
        };
        match &self.layout {
            Layout::One { prefix, .. } => format!("{prefix}{written}"),
            Layout::Items { separator, pair, versions } => {
                let version = versions.iter().find(|(_, known)| **known == algorithm);
                let version = version.map_or("", |(version, _)| version.as_str());
                let time = time.map(|(item, text)| format!("{item}{pair}{text}{separator}"));
                format!("{}{version}{pair}{written}", time.unwrap_or_default())
            }
        }
    }
}

impl Timestamp {
    pub(crate) fn new(config: &TimestampConfig) -> Result<Self, InvalidInput> {
        let place = match (&config.header[..], &config.item, &config.path) {
            ([], Some(item), None) => TimePlace::Item(item.clone()),
            ([], None, Some(path)) => {
                let path = JsonPath::parse(path);
                let path = path.map_err(|error| InvalidInput::new(format!("timestamp.path: {error}")))?;
                TimePlace::Path(Box::new(path))
            }
            ([_, ..], None, None) => TimePlace::Header(header_names(&config.header)?),
            _ => return Err(InvalidInput::new("timestamp needs one of header, item and path")),
        };
        if config.optional && !matches!(place, TimePlace::Path(_)) {
            return Err(InvalidInput::new("timestamp: only a time in the body can be optional"));
        }
        Ok(Self { place, unit: config.unit, is_optional: config.optional })
    }

    pub(crate) fn item(&self) -> Option<&str> {
        match &self.place {
            TimePlace::Item(item) => Some(item),
            TimePlace::Header(_) | TimePlace::Path(_) => None,
        }
    }

    pub(crate) fn header(&self, family: usize) -> Option<&HeaderName> {
        match &self.place {
            TimePlace::Header(names) => names.get(family),
            TimePlace::Item(_) | TimePlace::Path(_) => None,
        }
    }

    pub(crate) fn is_in_body(&self) -> bool {
        matches!(self.place, TimePlace::Path(_))
    }

    /// The time in the body in milliseconds since 1970, if there must be one or there is one.
    pub(crate) fn ms_in_body(&self, carried: &Carried, view: &View<'_>) -> Result<Option<i64>, Rejection> {
        match self.read(carried, view).and_then(|text| self.ms(&text)) {
            Ok(ms) => Ok(Some(ms)),
            Err(_) if self.is_optional => Ok(None),
            Err(rejection) => Err(rejection),
        }
    }

    /// The time as it was signed.
    pub(crate) fn read(&self, carried: &Carried, view: &View<'_>) -> Result<String, Rejection> {
        let missing = |what: String| Rejection::new(Reason::Missing, what);
        let text = match &self.place {
            TimePlace::Header(names) => {
                let name = names.get(carried.family).or(names.first());
                let name = name.ok_or_else(|| missing("the time is missing".to_owned()))?;
                needed(view.headers, name)?.to_owned()
            }
            TimePlace::Item(item) => {
                let words = || missing(format!("the signature has no item {item} with its time"));
                carried.time.clone().filter(|time| !time.is_empty()).ok_or_else(words)?
            }
            TimePlace::Path(path) => {
                let found = view.json().and_then(|json| path.query(json).exactly_one().ok());
                match found {
                    Some(Value::String(text)) => text.clone(),
                    Some(Value::Number(number)) => number.to_string(),
                    Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) | None => {
                        return Err(missing(format!("the body has no time at {path}")));
                    }
                }
            }
        };
        Ok(text)
    }

    /// The time in milliseconds since 1970.
    pub(crate) fn ms(&self, text: &str) -> Result<i64, Rejection> {
        self.unit
            .ms(text)
            .ok_or_else(|| Rejection::new(Reason::Malformed, "the signed time is not a time".to_owned()))
    }
}

impl TimeUnit {
    /// The time in milliseconds since 1970.
    pub(crate) fn ms(self, text: &str) -> Option<i64> {
        let digits = || {
            let plain =
                !text.is_empty() && text.len() <= MAX_DIGITS && text.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| text.parse::<i64>().ok()).flatten()
        };
        match self {
            Self::S => digits()?.checked_mul(1_000),
            Self::Ms => digits(),
            Self::Rfc3339 => {
                let time = humantime::parse_rfc3339(text).ok()?;
                let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
                i64::try_from(since.as_millis()).ok()
            }
        }
    }

    /// Writes a time as [`Self::ms`] reads it.
    pub(crate) fn write(self, ms: i64) -> String {
        match self {
            Self::S => (ms / 1_000).to_string(),
            Self::Ms => ms.to_string(),
            Self::Rfc3339 => {
                let since = std::time::Duration::from_millis(u64::try_from(ms).unwrap_or_default());
                humantime::format_rfc3339_millis(std::time::UNIX_EPOCH + since).to_string()
            }
        }
    }
}

/// The id that the signature covers: a header with as many names as that of the signature.
pub(crate) fn signed_id<'a>(
    names: &[HeaderName],
    family: usize,
    headers: &'a HeaderMap,
) -> Result<Option<&'a str>, Rejection> {
    match names.get(family).or(names.first()) {
        None => Ok(None),
        Some(name) => match one(headers, name)? {
            None | Some("") => {
                Err(Rejection::new(Reason::Missing, format!("the header {name} is missing or empty")))
            }
            found @ Some(_) => Ok(found),
        },
    }
}

pub(crate) fn header_names(names: &[String]) -> Result<Vec<HeaderName>, InvalidInput> {
    let parse = |name: &String| {
        name.parse().map_err(|_| InvalidInput::new(format!("{name:?} is not the name of a header")))
    };
    names.iter().map(parse).collect()
}

fn unreadable(name: &HeaderName) -> Rejection {
    Rejection::new(Reason::Malformed, format!("the signature in the header {name} cannot be read"))
}
