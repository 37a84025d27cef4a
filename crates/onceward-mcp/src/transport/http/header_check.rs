//! Checks that the headers of a request match its body, as the stateless revision requires. The server does this
//! check; a call that the proxy answers must not get a different answer.

use data_encoding::BASE64;
use hyper::HeaderMap;

use super::headers::{self, METHOD, NAME, PARAM, VERSION};
use crate::tools::mirrored::Mirrored;
use crate::wire::raw::{self, Object};
use crate::wire::tool_call::ToolCall;

/// The error code for a header that does not match the body.
const MISMATCH: i64 = -32020;
/// The first revision whose headers repeat the body.
const FIRST: &str = "2026-07-28";
/// The `_meta` member with the protocol version.
const BODY_VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// The refusal of a call whose headers do not match its body. `None` if they match.
pub(crate) fn refusal(headers: &HeaderMap, call: &ToolCall, mirrored: &[Mirrored]) -> Option<String> {
    let said = call.meta().and_then(|meta| meta.string(BODY_VERSION));
    let header = headers::only(headers, VERSION.as_str());
    let is_modern = |version: &&str| *version >= FIRST && version.as_bytes().first() == Some(&b'2');
    said.as_deref().filter(is_modern).or(header.filter(is_modern))?;
    let problem = if header.is_none() || header != said.as_deref() {
        Some(VERSION.to_string())
    } else if headers::only(headers, METHOD.as_str()) != Some("tools/call") {
        Some(METHOD.to_string())
    } else if headers::only(headers, NAME.as_str()).and_then(decoded).as_deref() != Some(&call.tool) {
        Some(NAME.to_string())
    } else {
        mirrored.iter().find(|one| !agrees(headers, call, one)).map(|one| format!("{PARAM}{}", one.token))
    };
    problem.map(|name| {
        let words = raw::quoted(&format!("HeaderMismatch: the header {name} does not match the body"));
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{},\"error\":{{\"code\":{MISMATCH},\"message\":{words}}}}}",
            call.id()
        )
    })
}

fn agrees(headers: &HeaderMap, call: &ToolCall, mirrored: &Mirrored) -> bool {
    let name = format!("{PARAM}{}", mirrored.token.to_ascii_lowercase());
    let header = headers::only(headers, &name);
    let value = value_at(call.arguments(), &mirrored.path).filter(|value| value != "null");
    match (header, value) {
        (None, None) => !headers.contains_key(&name),
        (Some(header), Some(value)) => decoded(header).is_some_and(|header| says(&header, &value)),
        (Some(_), None) => false,
        // Clients omit values that a header cannot hold.
        (None, Some(value)) => value.starts_with(['{', '[']) && !headers.contains_key(&name),
    }
}

/// Whether a header has that value. An integer may be written with a fraction of zeros.
fn says(header: &str, value: &str) -> bool {
    let whole = |text: &str| match text.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0') => {
            whole.to_owned()
        }
        Some(_) | None => text.to_owned(),
    };
    match raw::string(value) {
        Some(text) => header == text,
        None if value.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => whole(header) == whole(value),
        None => header == value,
    }
}

/// The argument at that path, as JSON.
pub(super) fn value_at(arguments: &str, path: &[String]) -> Option<String> {
    let mut value = arguments.to_owned();
    for name in path {
        value = Object::parse(&value)?.get(name)?.to_owned();
    }
    Some(value)
}

/// The value of a header, which may be base64-encoded if it is not visible ASCII.
fn decoded(value: &str) -> Option<String> {
    match value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        Some(wrapped) => String::from_utf8(BASE64.decode(wrapped.as_bytes()).ok()?).ok(),
        None => Some(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::mirrored::mirrored;
    use crate::wire::message::Head;

    const CALL: &str = concat!(
        r#"{"id":7,"method":"tools/call","params":{"name":"tä","arguments":{"region":"eu","deep":{"n":42}},"#,
        r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#
    );
    const SCHEMA: &str = concat!(
        r#"{"properties":{"region":{"type":"string","x-mcp-header":"Region"},"#,
        r#""deep":{"properties":{"n":{"x-mcp-header":"N"},"m":{"x-mcp-header":"M"}}}}}"#
    );

    fn refused(changes: &[(&'static str, &str)]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", "=?base64?dMOk?="),
            ("mcp-param-region", "eu"),
            ("mcp-param-n", "42.0"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        for (name, value) in changes {
            match *value {
                "" => drop(headers.remove(*name)),
                value => drop(headers.insert(*name, value.parse().unwrap())),
            }
        }
        let call = ToolCall::parse(&Head::parse(CALL).unwrap()).unwrap();
        refusal(&headers, &call, &mirrored(SCHEMA))
    }

    #[test]
    fn headers_must_match_the_body() {
        assert_eq!(refused(&[]), None);
        for (name, value) in [
            ("mcp-protocol-version", "2025-11-25"),
            ("mcp-protocol-version", ""),
            ("mcp-method", "tools/list"),
            ("mcp-method", ""),
            ("mcp-name", "t"),
            ("mcp-name", "=?base64?!?="),
            ("mcp-param-region", "us"),
            ("mcp-param-region", ""),
            ("mcp-param-n", "42.5"),
            ("mcp-param-m", "1"),
        ] {
            let refused = refused(&[(name, value)]).unwrap_or_default();
            assert!(refused.contains("-32020") && refused.contains("\"id\":7"), "{name}: {value}: {refused}");
            assert!(refused.to_lowercase().contains(name), "{refused}");
        }
    }

    #[test]
    fn revisions_with_sessions_are_not_checked() {
        let call = CALL.replace("2026-07-28", "2025-11-25");
        let call = ToolCall::parse(&Head::parse(&call).unwrap()).unwrap();
        assert_eq!(refusal(&HeaderMap::new(), &call, &[]), None);
    }
}
