//! `once inbox try`: a correctly signed sample event, sent twice, and once forged.
//!
//! With `[hook.SOURCE]` in the policy it goes to the running server. Without, a server of its own with a temporary
//! ledger takes it, so that a new user sees the inbox work at once.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use http::{HeaderMap, HeaderValue, Method, header};
use onceward_http::config::{HandlerConfig, HookConfig};
use onceward_http::inbox::{FetchCertificate, HostEnvironment, Signed, Source, Trial};
use onceward_http::{App, Config};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::path_of;
use super::remote::{Reply, ServerArgs, runtime, send};
use crate::answer;
use crate::context::Context;
use crate::exit::{CommandError, Ended};
use crate::style::{BOLD, DIM, GREEN, RED, styled};

/// How long a configured handler may take before the command stops watching.
const PATIENCE: Duration = Duration::from_secs(5);

/// Send a correctly signed sample event, without an account at the vendor
#[derive(Debug, Args)]
pub(super) struct TryArgs {
    /// The source in the policy, or a vendor: stripe, github, slack, …
    #[arg(value_name = "SOURCE")]
    source: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// What happened, for programs.
#[derive(Debug, Serialize)]
struct Tried {
    /// The content is made up: it is a sample, not an event of the vendor.
    sample: bool,
    source: String,
    /// Whether everything happened in a temporary ledger.
    temporary: bool,
    steps: Vec<Step>,
}

#[derive(Debug, Serialize)]
struct Step {
    what: &'static str,
    status: u16,
    result: String,
    is_as_expected: bool,
}

pub(super) fn run(context: &Context, args: &TryArgs) -> Ended {
    let config = context.server_config()?;
    let runtime = runtime()?;
    let tried = match config.hooks.get(&args.source) {
        Some(hook) => runtime.block_on(at_server(context, args, hook, &config))?,
        None => runtime.block_on(on_its_own(&args.source))?,
    };
    let is_good = tried.steps.iter().all(|step| step.is_as_expected);
    let text = || text(&tried, &args.source);
    if is_good {
        answer::success(context.global.json, "created", &tried, text);
        return Ok(ExitCode::SUCCESS);
    }
    let problem = "the inbox did not answer as expected; see the steps".to_owned();
    answer::incomplete(context.global.json, "noop", problem, &tried, text);
    Ok(ExitCode::FAILURE)
}

fn text(tried: &Tried, source: &str) -> String {
    let mut lines = vec![format!(
        "{} The content is made up; it is not an event of the vendor.",
        styled(BOLD, format!("A sample event of {source}."))
    )];
    for step in &tried.steps {
        let (mark, style) = if step.is_as_expected { ("ok", GREEN) } else { ("no", RED) };
        lines.push(format!("  {}  {:<26} {} {}", styled(style, mark), step.what, step.status, step.result));
    }
    if tried.temporary {
        let variable = format!("${}_WEBHOOK_SECRET", source.to_ascii_uppercase().replace('-', "_"));
        lines.push(format!(
            "{}\n\n  [hook.{source}]\n  secrets = [\"{variable}\"]\n  [hook.{source}.handler.app]\n  \
             url = \"http://127.0.0.1:8000/webhooks\"\n\n{}",
            styled(DIM, "This ran in a temporary ledger. To receive events, write into onceward.toml:"),
            styled(DIM, "then run `once serve` and give the vendor the address /hooks/… of this machine."),
        ));
    }
    lines.join("\n")
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn number() -> u64 {
    u64::try_from(now_ms()).unwrap_or_default()
}

/// Sends a signed request to the server.
async fn post(url: &str, signed: &Signed) -> Result<Reply, CommandError> {
    // The URL that is signed may differ from the one that is sent to, but its query belongs to the request.
    let query = signed.url.split_once('?').map(|(_, query)| format!("?{query}")).unwrap_or_default();
    send(&format!("{url}{query}"), Method::POST, signed.headers.clone(), signed.body.to_vec()).await
}

fn step(what: &'static str, reply: &Reply, is_expected: impl Fn(u16, &str) -> bool) -> Step {
    let result = reply.headers.get("once-result").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let result = match (result, reply.status) {
        ("", 401 | 400 | 403) => "rejected",
        (word, _) => word,
    };
    Step {
        what,
        status: reply.status,
        result: result.to_owned(),
        is_as_expected: is_expected(reply.status, result),
    }
}

fn accepted(reply: &Reply) -> Step {
    step("a signed sample", reply, |status, word| (200..300).contains(&status) && word == "accepted")
}

/// The same event again, and a forged one.
async fn repeat_and_forge(url: &str, signed: &Signed) -> Result<Vec<Step>, CommandError> {
    let again = post(url, signed).await?;
    let mut forged = signed.clone();
    let mut body = forged.body.to_vec();
    let middle = body.len() / 2;
    if let Some(byte) = body.get_mut(middle) {
        *byte ^= 1;
    }
    forged.body = body.into();
    if forged.headers.contains_key(header::AUTHORIZATION) {
        // A token says nothing about the content, so this one is wrong.
        forged.headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer forged"));
    }
    let forged = post(url, &forged).await?;
    Ok(vec![
        step("the same event again", &again, |status, word| {
            (200..300).contains(&status) && word == "duplicate"
        }),
        step("a forged one", &forged, |status, _| (400..500).contains(&status)),
    ])
}

async fn at_server(
    context: &Context,
    args: &TryArgs,
    hook: &HookConfig,
    config: &Config,
) -> Result<Tried, CommandError> {
    let source = Source::new(&args.source, &hook.source, &|name| std::env::var(name).ok())?;
    let url = format!("{}{}", args.server.url(context)?, path_of(&args.source));
    // Without a configured URL, the server assumes that it is behind a proxy with TLS.
    let public = hook.source.url.clone().unwrap_or_else(|| url.replacen("http://", "https://", 1));
    let signed = source.sign_sample(&public, number(), now_ms())?;
    let first = post(&url, &signed).await?;
    let mut steps = vec![accepted(&first)];
    steps.extend(repeat_and_forge(&url, &signed).await?);
    let operation = first.headers.get("once-operation").and_then(|value| value.to_str().ok());
    if let Some(operation) = operation.filter(|_| !hook.handlers.is_empty() && config.tenants.is_empty()) {
        steps.push(delivered(context, operation).await?);
    }
    Ok(Tried { sample: true, source: args.source.clone(), temporary: false, steps })
}

/// Watches the ledger until the event was delivered.
async fn delivered(context: &Context, operation: &str) -> Result<Step, CommandError> {
    let events = onceward_http::inbox::admin::Events::new(context.store(crate::context::IfMissing::Fail)?);
    let until = Instant::now() + PATIENCE;
    loop {
        let (source, record) = events.find(operation, None).await?;
        let view = events.view(&source, &record).await?;
        let is_pending = view.progress == onceward_http::inbox::admin::Progress::Pending;
        if !is_pending || Instant::now() >= until {
            let states: Vec<String> =
                view.deliveries.iter().map(|one| format!("{} {}", one.handler, one.state)).collect();
            let result = if states.is_empty() { "no handler wants it".to_owned() } else { states.join(", ") };
            // A handler that is not there yet is no fault of the inbox: it tries again.
            return Ok(Step { what: "delivered", status: 200, result, is_as_expected: true });
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A server of its own, with a temporary ledger and a handler that fetches its events.
async fn on_its_own(name: &str) -> Result<Tried, CommandError> {
    let trial = Arc::new(Trial::new(name)?);
    let failed = |what: &str, error: std::io::Error| CommandError::Outside(format!("{what}: {error}"));
    let folder = tempfile::tempdir().map_err(|error| failed("a temporary folder", error))?;
    let store = onceward_store::open(&format!("sqlite:{}", folder.path().join("once.db").display()))?;
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| failed("cannot listen", error))?;
    let address = listener.local_addr().map_err(|error| failed("cannot listen", error))?;
    let base = format!("http://{address}");
    let url = format!("{base}{}", path_of(name));
    let app = App::new(store, trial_config(name, &url, &trial))?;
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(onceward_http::serve(listener, app, async {
        // It ends when this function does.
        drop(stopped.await);
    }));
    let signed = trial.sign(&trial.source.sample(&url, number(), now_ms())?)?;
    let mut steps = vec![accepted(&post(&url, &signed).await?)];
    steps.extend(repeat_and_forge(&url, &signed).await?);
    steps.push(fetched(&base, name).await?);
    drop(stop);
    drop(server.await);
    Ok(Tried { sample: true, source: name.to_owned(), temporary: true, steps })
}

/// One source with new keys, and one handler that fetches.
fn trial_config(name: &str, url: &str, trial: &Arc<Trial>) -> Config {
    let mut hook = HookConfig::default();
    hook.source = trial.config.clone();
    hook.source.url = Some(url.to_owned());
    let mut handler = HandlerConfig::default();
    handler.pull = true;
    hook.handlers = BTreeMap::from([("sample".to_owned(), handler)]);
    let mut config = Config::default();
    config.hooks = BTreeMap::from([(name.to_owned(), hook)]);
    let secret = trial.variable().map(|(variable, secret)| (variable.to_owned(), secret.to_owned()));
    let variable = move |asked: &str| {
        secret.as_ref().filter(|(variable, _)| variable == asked).map(|(_, secret)| secret.clone())
    };
    let certificates: Arc<dyn FetchCertificate> = Arc::<Trial>::clone(trial);
    config.environment = HostEnvironment::variables(variable).certificates(certificates);
    config
}

/// Fetches the event as a handler does, and reports that it is done.
async fn fetched(base: &str, name: &str) -> Result<Step, CommandError> {
    let ask = |path: String, body: Value| async move {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let reply =
            send(&format!("{base}{path}"), Method::POST, headers, body.to_string().into_bytes()).await?;
        let answer: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        Ok::<_, CommandError>((reply.status, answer))
    };
    let (status, answer) =
        ask(format!("/v1/inbox/{name}/receive"), json!({"max": 10, "wait_ms": 5_000})).await?;
    let events = answer["events"].as_array().cloned().unwrap_or_default();
    for event in &events {
        let path = format!("/v1/operations/{}/finish", event["operation"].as_str().unwrap_or_default());
        ask(path, json!({"attempt": event["attempt"], "token": event["token"]})).await?;
    }
    let kind = events.first().and_then(|event| event["type"].as_str()).unwrap_or("event").to_owned();
    let result = format!("{} × {kind}", events.len());
    Ok(Step { what: "the handler gets it once", status, result, is_as_expected: events.len() == 1 })
}
