//! Requests to a running server.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use http_body_util::BodyExt;
use onceward_http::client::{Connection, Remote, SendError, full};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::LsArgs;
use crate::answer;
use crate::context::Context;
use crate::exit::{CommandError, Ended};
use crate::style::{BOLD, DIM, YELLOW};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which server.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    /// The running `once serve` [default: the first address of [serve] listen, or http://127.0.0.1:6270]
    #[arg(long, value_name = "URL")]
    pub(super) server: Option<String>,
}

impl ServerArgs {
    /// The URL of the server.
    pub(super) fn url(&self, context: &Context) -> Result<String, CommandError> {
        if let Some(url) = &self.server {
            return Ok(url.trim_end_matches('/').to_owned());
        }
        let serve = context.listening()?;
        let scheme = if serve.tls.is_some() { "https" } else { "http" };
        let address = serve.listen.first().map_or("127.0.0.1:6270".to_owned(), ToString::to_string);
        Ok(format!("{scheme}://{}", address.replace("0.0.0.0", "127.0.0.1")))
    }
}

/// An answer of the server.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// The runtime for requests.
pub(super) fn runtime() -> Result<Runtime, CommandError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| CommandError::Outside(format!("cannot start the runtime: {error}")))
}

/// Sends one request.
pub(super) async fn send(
    url: &str,
    method: Method,
    headers: HeaderMap,
    body: Vec<u8>,
) -> Result<Reply, CommandError> {
    let remote = Remote::new(url)?;
    let request = remote.request(method, remote.path(), headers, full(body));
    let sent = tokio::time::timeout(PATIENCE, async {
        let response = remote.send(request, Connection::Fresh).await.map_err(|error| match error {
            SendError::NotSent(why) | SendError::MaybeSent(why) => why,
        })?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?;
        Ok::<_, String>(Reply { status, headers, body: body.to_bytes().to_vec() })
    });
    let late = |_| CommandError::Outside(format!("{} did not answer in time", remote.shown()));
    sent.await.map_err(late)?.map_err(|why| {
        CommandError::Outside(format!(
            "{} cannot be reached: {why}. Is `once serve` running?",
            remote.shown()
        ))
    })
}

/// Lists the requests that ran nothing, as a running server remembers them.
pub(super) fn rejected(context: &Context, args: &LsArgs) -> Ended {
    let source = args.source.as_deref().unwrap_or_default();
    let url = format!("{}/v1/inbox/{source}/rejected", args.server.url(context)?);
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(token) = std::env::var("ONCE_TOKEN").ok().filter(|token| !token.is_empty()) {
        let bearer = HeaderValue::try_from(format!("Bearer {token}"));
        headers
            .insert(AUTHORIZATION, bearer.map_err(|_| CommandError::invalid("ONCE_TOKEN is not a token"))?);
    }
    let reply = runtime()?.block_on(send(&url, Method::GET, headers, Vec::new()))?;
    let answer: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    let Some(rejected) = answer["rejected"].as_array().filter(|_| reply.status == 200) else {
        let why = answer["detail"].as_str().unwrap_or("its answer cannot be read").to_owned();
        return Err(CommandError::Outside(format!("{url} answered with status {}: {why}", reply.status)));
    };
    let shown = rejected.get(..rejected.len().min(args.limit as usize)).unwrap_or_default();
    if args.jsonl {
        shown.iter().for_each(answer::json);
        return Ok(ExitCode::SUCCESS);
    }
    answer::success(context.global.json, "noop", &shown, || {
        if shown.is_empty() {
            return "no requests were rejected since the server started".to_owned();
        }
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let rows = shown.iter().map(|one| {
            vec![
                (word(&one["at"]), DIM),
                (word(&one["source"]), BOLD),
                (word(&one["reason"]), YELLOW),
                (word(&one["message"]), anstyle::Style::new()),
            ]
        });
        answer::table(&["at", "source", "reason", "message"], &rows.collect::<Vec<_>>())
    });
    Ok(ExitCode::SUCCESS)
}
