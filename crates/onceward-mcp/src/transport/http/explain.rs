//! Explains how the proxy classifies each tool of a server over HTTP.

use onceward::InvalidInput;
use serde_json::json;

use super::remote::Remote;
use super::visit::Visit;
use crate::tools::explain::{self, Explained, PAGES, Ruling};
use crate::tools::rules::Catalogue;

/// Lists the tools of a server over HTTP and explains each of them. `headers` are sent with every request.
///
/// # Errors
/// If the server does not answer like an MCP server, or a header is invalid.
pub async fn explain(
    rules: Ruling,
    remote: Remote,
    headers: &[(String, String)],
) -> Result<Vec<Explained>, InvalidInput> {
    let visit = Visit::begin(remote, headers).await?;
    let meta = visit.meta();
    let mut catalogue = Catalogue::default();
    let mut cursor: Option<String> = None;
    for _ in 0..PAGES {
        let params = match cursor.take() {
            Some(cursor) => json!({"_meta": meta, "cursor": cursor}),
            None => json!({"_meta": meta}),
        };
        let result = visit.ask("tools/list", &params).await;
        let result =
            result.map_err(|why| InvalidInput::new(format!("the server does not list its tools: {why}")))?;
        cursor = catalogue.learn(&result);
        if cursor.is_none() {
            break;
        }
    }
    visit.leave().await;
    explain::all(&rules.into(), &catalogue)
}
