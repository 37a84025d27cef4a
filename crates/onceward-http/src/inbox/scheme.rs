//! What a signature covers, where it is, and with which algorithm it was made.
//!
//! - `template`: what is signed. `header`: signatures and times in headers. `keys`: secrets, and the algorithms.
//! - `twilio`, `sns`: what these vendors sign instead of the body. `certificate`: keys that the vendor publishes.

pub(crate) mod certificate;
pub(crate) mod header;
pub(crate) mod keys;
pub(crate) mod sns;
pub(crate) mod template;
pub(crate) mod twilio;

use http::{HeaderMap, HeaderName};

use super::judgement::{Reason, Rejection};

/// The text of a header that occurs at most once.
pub(crate) fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Rejection> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Rejection::new(Reason::Duplicate, format!("there are several headers {name}")));
    }
    let text = value.to_str().map_err(|_| {
        Rejection::new(Reason::Malformed, format!("the header {name} has characters that are not ASCII"))
    })?;
    Ok(Some(text.trim()))
}

/// The text of a header that is needed and not empty.
pub(crate) fn needed<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a str, Rejection> {
    match one(headers, name)? {
        None => Err(Rejection::new(Reason::Missing, format!("the header {name} is missing"))),
        Some("") => Err(Rejection::new(Reason::Missing, format!("the header {name} is empty"))),
        Some(text) => Ok(text),
    }
}
