//! What a caller asks of the gateway in headers, besides the request itself.

use hyper::HeaderMap;
use onceward::InvalidInput;

const SCOPE: &str = "Once-Scope";
const OCCURRENCE: &str = "Once-Occurrence";
const DRY_RUN: &str = "Once-Dry-Run";
const RUN: &str = "Once-Run";
const SAMPLE: &str = "Once-Sample";

/// What a caller asks of the gateway.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestOptions {
    pub(crate) scope: Option<String>,
    pub(crate) occurrence: Option<String>,
    pub(crate) dry_run: bool,
    /// The start of a scope, in which model calls are counted.
    pub(crate) run: Option<String>,
    /// Which sample of a model's answer is meant.
    pub(crate) sample: Option<String>,
}

impl RequestOptions {
    /// Reads the headers.
    ///
    /// # Errors
    /// One of them is empty, occurs twice or cannot be read: without it, the request would mean something else.
    pub(crate) fn read(headers: &HeaderMap) -> Result<Self, InvalidInput> {
        let occurrence = only(headers, OCCURRENCE)?;
        if occurrence.is_some_and(|text| text.trim() == "0") {
            let problem =
                format!("{OCCURRENCE}: must be 1, 2, 3, … or a label; the first one is 1; nothing was sent");
            return Err(InvalidInput::new(problem));
        }
        let text = |name| only(headers, name).map(|text| text.map(str::to_owned));
        Ok(Self {
            scope: text(SCOPE)?,
            occurrence: occurrence.map(str::to_owned),
            dry_run: only(headers, DRY_RUN)?.is_some_and(|value| value != "false" && value != "0"),
            run: text(RUN)?,
            sample: text(SAMPLE)?,
        })
    }
}

/// The text of a header that occurs at most once.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, InvalidInput> {
    let mut all = headers.get_all(name).iter();
    let Some(first) = all.next() else { return Ok(None) };
    let problem = match first.to_str() {
        _ if all.next().is_some() => format!("the request has the header {name} more than once"),
        Err(_) => format!("the header {name} has characters other than ASCII"),
        Ok(text) if text.trim().is_empty() => format!("the header {name} is empty"),
        Ok(text) => return Ok(Some(text)),
    };
    Err(InvalidInput::new(format!("{problem}; nothing was sent")))
}
