//! What an idempotent API tells its clients: the `Idempotency-Key` header (draft-ietf-httpapi-idempotency-key-header),
//! and errors as problem documents (RFC 9457).
//!
//! The documents say what a client must know, with the titles of the draft. They do not say how an operator settles a
//! doubt, or what the server calls the caller. Every middleware renders them, so all of them answer alike.

use serde::Serialize;

use crate::error::{Code, Error};
use crate::facts::Happened;
use crate::invalid::InvalidInput;

/// The longest key, in characters.
const LONGEST_KEY: usize = 255;
/// When a client may ask again, where asking again is right.
const RETRY_AFTER_MS: u64 = 1_000;
/// The code of a request whose body is too large to compare. No operation was looked at.
const TOO_LARGE: &str = "TOO_LARGE";
const NOT_KEPT: &str = "the request was carried out, and its response was not kept";

/// A problem of a request to an idempotent API, in the order in which its members are written.
///
/// ```
/// use onceward::ApiProblem;
///
/// let problem = ApiProblem::key_missing("Idempotency-Key");
/// assert_eq!((problem.status, problem.title), (400, "Idempotency-Key is missing"));
/// assert!(problem.headers().contains(&("x-should-retry", "false".to_owned())));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ApiProblem {
    /// The code as a URN: `urn:onceward:IN_DOUBT`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words.
    pub title: &'static str,
    /// The HTTP status. Where a blind retry must not come, it is one that no client retries on its own.
    pub status: u16,
    /// What happened, and what to do.
    pub detail: String,
    /// The code.
    pub code: String,
    /// Whether the request was carried out. `None` if no operation was looked at.
    pub happened: Option<Happened>,
    /// Whether the same request may simply be sent again.
    pub retryable: bool,
    /// When to ask again, if asking again is right.
    pub retry_after_ms: Option<u64>,
    /// The operation, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The fields that differ, if a key was used for another request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
}

impl ApiProblem {
    /// The problem with a code. `message` is used where the client's own request is wrong; otherwise the text is
    /// this module's, because the ledger's words can quote the handler and are for operators.
    #[must_use]
    pub fn new(code: &str, happened: Option<Happened>, message: &str) -> Self {
        let known = Code::ALL.into_iter().find(|known| known.as_str() == code);
        let status = match known {
            Some(known) => known.http(),
            None if code == TOO_LARGE => 413,
            None => 500,
        };
        Self {
            kind: format!("urn:onceward:{code}"),
            title: title(known),
            status,
            detail: known.and_then(|known| detail(known, happened)).unwrap_or(message).to_owned(),
            code: code.to_owned(),
            happened,
            retryable: false,
            retry_after_ms: matches!(status, 409 | 503).then_some(RETRY_AFTER_MS),
            operation: None,
            fields: Vec::new(),
        }
    }

    /// The problem for an error of the ledger.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        let fields = if let Error::KeyReused { fields, .. } = error { fields.clone() } else { Vec::new() };
        Self {
            retryable: error.retryable(),
            operation: error.record().map(|record| record.id.to_string()),
            fields,
            ..Self::new(error.code().as_str(), error.happened(), &error.to_string())
        }
    }

    /// The request has no key, and needs one.
    #[must_use]
    pub fn key_missing(header: &str) -> Self {
        let message = format!(
            "this request needs the header {header} with a value that you choose and that a retry repeats; nothing was \
             carried out"
        );
        Self::new(Code::KeyMissing.as_str(), None, &message)
    }

    /// The body of the request is larger than what may be held to compare it.
    #[must_use]
    pub fn too_large(most: usize) -> Self {
        Self::new(
            TOO_LARGE,
            None,
            &format!("a request with a key may have {most} bytes; nothing was carried out"),
        )
    }

    /// The body of the request broke off.
    #[must_use]
    pub fn unreadable() -> Self {
        let message = "the body of the request could not be read; nothing was carried out";
        Self::new(Code::InvalidInput.as_str(), None, message)
    }

    /// The request was carried out, and its response was not kept.
    #[must_use]
    pub fn not_kept(operation: String) -> Self {
        let code = Code::ResultUnavailable.as_str();
        Self { operation: Some(operation), ..Self::new(code, Some(Happened::Yes), NOT_KEPT) }
    }

    /// The headers of the response, except the length of its body. Some are what clients that retry on their own obey.
    #[must_use]
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![
            ("content-type", "application/problem+json".to_owned()),
            ("content-language", "en".to_owned()),
        ];
        match self.retry_after_ms {
            Some(ms) => headers.push(("retry-after", ms.div_ceil(1_000).to_string())),
            None => headers
                .extend(["x-should-retry", "stripe-should-retry"].map(|name| (name, "false".to_owned()))),
        }
        headers
    }

    /// The body of the response.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        // It consists of text and numbers.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The key in the values of a header, quoted (RFC 8941) or bare; `None` if there is no value.
///
/// ```
/// assert_eq!(onceward::idempotency_key("Idempotency-Key", &[b"\"a-1\""])?.as_deref(), Some("a-1"));
/// assert!(onceward::idempotency_key("Idempotency-Key", &[b"a", b"b"]).is_err());
/// # Ok::<(), onceward::InvalidInput>(())
/// ```
///
/// # Errors
/// If there are several values, or the key is not 1 to 255 visible ASCII characters.
pub fn idempotency_key(header: &str, values: &[&[u8]]) -> Result<Option<String>, InvalidInput> {
    let said = match values {
        [] => return Ok(None),
        // Each byte is one character, as HTTP has it.
        [one] => one.iter().map(|byte| char::from(*byte)).collect::<String>(),
        many => {
            let times = many.len();
            let problem = format!("the header {header} is given {times} times; nothing was carried out");
            return Err(InvalidInput::new(problem));
        }
    };
    let said = said.trim_matches([' ', '\t']);
    let key = quoted(said).unwrap_or_else(|| said.to_owned());
    if key.is_empty() || key.len() > LONGEST_KEY || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(InvalidInput::new(format!(
            "the header {header} must be 1 to {LONGEST_KEY} visible ASCII characters; nothing was carried out"
        )));
    }
    Ok(Some(key))
}

/// The text of a structured string; its parameters are ignored.
fn quoted(said: &str) -> Option<String> {
    let mut rest = said.strip_prefix('"')?.chars();
    let mut key = String::new();
    loop {
        match rest.next()? {
            '"' => break,
            '\\' => key.push(rest.next().filter(|next| matches!(next, '"' | '\\'))?),
            plain @ ' '..='~' => key.push(plain),
            _ => return None,
        }
    }
    let rest = rest.as_str();
    (rest.is_empty() || rest.starts_with(';')).then_some(key)
}

/// What happened and what to do, for a client. `None` where the request itself is wrong.
fn detail(code: Code, happened: Option<Happened>) -> Option<&'static str> {
    Some(match code {
        Code::InvalidInput | Code::KeyMissing => return None,
        Code::KeyReused => {
            "this key was used for a request with another query or body; nothing was carried out. Send a new request \
             with a new key"
        }
        Code::InProgress => {
            "an earlier request with this key is still being carried out; send the same request again to get its \
             answer"
        }
        Code::InDoubt if happened == Some(Happened::Yes) => {
            "the request was carried out, but its answer could not be recorded; do not send it again with another key"
        }
        Code::InDoubt | Code::Timeout | Code::Unverified => {
            "it is not known whether a request with this key was carried out. Check before you send it again with \
             another key"
        }
        Code::KeyExpired => {
            "the answer for this key has expired; nothing was carried out now. `happened` says how the request ended"
        }
        Code::Held => {
            "the request with this key is held back; nothing was carried out. Send the same request again later to \
             get its answer"
        }
        Code::Cancelled => "the request with this key was cancelled; nothing was carried out",
        Code::Undone => {
            "the request with this key was carried out and then taken back; nothing was carried out now. Use a new key \
             to do it again"
        }
        Code::Stopped => {
            "the run that this request belongs to was stopped; nothing was carried out. Do not send it again"
        }
        Code::BudgetExhausted => {
            "the request with this key has failed too often; nothing was carried out now"
        }
        Code::ResultUnavailable => NOT_KEPT,
        Code::LedgerUnavailable | Code::LedgerReplaced => {
            "the ledger of requests cannot be used; nothing was carried out now. Send the same request again later"
        }
        Code::Failed | Code::NotFound | Code::WrongState => "the request failed; nothing was carried out",
    })
}

/// The titles of the draft, and our own for the rest.
fn title(code: Option<Code>) -> &'static str {
    match code {
        Some(Code::KeyMissing) => "Idempotency-Key is missing",
        Some(Code::InvalidInput) => "Idempotency-Key is not valid",
        Some(Code::KeyReused) => "Idempotency-Key is already used",
        Some(Code::InProgress) => "A request is outstanding for this Idempotency-Key",
        Some(Code::InDoubt | Code::Timeout) => "It is not known whether this request was carried out",
        Some(Code::ResultUnavailable) => "This request was carried out, and its response was not kept",
        Some(Code::Held) => "This request is held back, and nothing was carried out",
        Some(Code::KeyExpired) => "Idempotency-Key has expired",
        Some(Code::LedgerUnavailable) => "Nothing was carried out: the ledger is not available",
        Some(Code::LedgerReplaced) => "Nothing was carried out: the ledger was replaced",
        Some(
            Code::NotFound
            | Code::WrongState
            | Code::Cancelled
            | Code::Undone
            | Code::Stopped
            | Code::BudgetExhausted
            | Code::Failed
            | Code::Unverified,
        )
        | None => "The request was refused",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_taken_quoted_and_bare() {
        let key = |value: &[u8]| idempotency_key("K", &[value]).ok().flatten();
        for (header, expected) in [
            ("abc", "abc"),
            ("\"abc\"", "abc"),
            ("\"a\\\"b\"", "a\"b"),
            ("\"abc\";v=1", "abc"),
            (" abc ", "abc"),
            ("\"abc", "\"abc"),
        ] {
            assert_eq!(key(header.as_bytes()).as_deref(), Some(expected), "{header}");
        }
        for header in ["", "\"\"", "a b", "\"a b\"", &"a".repeat(256)] {
            assert_eq!(key(header.as_bytes()), None, "{header}");
        }
        assert_eq!(key(b"\xfc"), None);
        assert_eq!(idempotency_key("K", &[]), Ok(None));
    }

    #[test]
    fn every_code_has_a_text_and_the_right_advice() {
        for code in Code::ALL {
            let problem = ApiProblem::new(code.as_str(), Some(Happened::Unknown), "the handler's words");
            let is_own = matches!(code, Code::InvalidInput | Code::KeyMissing);
            assert_eq!(problem.detail == "the handler's words", is_own, "{code}");
            assert_eq!(problem.status, code.http());
            let names: Vec<&str> = problem.headers().iter().map(|(name, _)| *name).collect();
            let may_ask_again = matches!(problem.status, 409 | 503);
            assert_eq!(names.contains(&"retry-after"), may_ask_again, "{code}");
            assert_eq!(names.contains(&"x-should-retry"), !may_ask_again, "{code}");
        }
        assert_eq!(ApiProblem::too_large(8).status, 413);
        let body = String::from_utf8(ApiProblem::not_kept("op_1".to_owned()).body()).unwrap();
        let text = "request was carried out, and its response was not kept";
        let expected = [
            r#"{"type":"urn:onceward:RESULT_UNAVAILABLE","#,
            &format!(r#""title":"This {text}","status":410,"detail":"the {text}","#),
            r#""code":"RESULT_UNAVAILABLE","happened":"yes","retryable":false,"retry_after_ms":null,"#,
            r#""operation":"op_1"}"#,
        ];
        assert_eq!(body, expected.concat());
    }
}
