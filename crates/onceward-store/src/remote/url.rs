//! Parts of the URLs of servers.

use std::fmt;
use std::time::Duration;

use onceward::InvalidInput;
use percent_encoding::percent_decode_str;

/// A text that must not appear in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The name if it can be shown, which means that it cannot be part of a password.
pub(crate) fn plain(name: &str) -> &str {
    let fits = name.len() <= 24 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if fits { name } else { "" }
}

/// Parses `500ms` or `5s`.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let span = match text.strip_suffix("ms") {
        Some(number) => Duration::from_millis(number.parse().ok()?),
        None => Duration::from_secs(text.strip_suffix('s')?.parse().ok()?),
    };
    (Duration::from_millis(10)..=Duration::from_secs(600)).contains(&span).then_some(span)
}

/// Percent-decoding: turns `%40` into `@`.
pub(crate) fn percent_decode(text: &str) -> Result<String, InvalidInput> {
    let is_byte =
        |rest: &str| rest.as_bytes().get(..2).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
    if !text.split('%').skip(1).all(is_byte) {
        return Err(InvalidInput::new("a % is not followed by two hexadecimal digits"));
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| InvalidInput::new("the percent-encoded text is not UTF-8"))
}
