//! `once inbox`: the events of webhooks.
//!
//! - `trial`: `once inbox try`. `remote`: requests to a running server.

mod remote;
mod trial;

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use onceward::{Ledger, Record};
use onceward_http::inbox::admin::{Again, DeliveryView, EventView, Events, Progress, Wanted};
use serde::Serialize;

use crate::answer;
use crate::cli::DryRunArgs;
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};
use crate::style::{BOLD, CYAN, DIM, GREEN, RED, YELLOW, styled};
use crate::table::one_line;

/// How often the ledger is looked at for new events, in milliseconds.
const LOOK_MS: u64 = 300;
/// How many of the newest events are followed.
const FOLLOWED: usize = 200;

/// The webhook inbox: look at events, retry or replay them, and try a source
#[derive(Debug, Args)]
pub(crate) struct InboxArgs {
    #[command(subcommand)]
    command: InboxCommand,
}

#[derive(Debug, Subcommand)]
enum InboxCommand {
    /// List events, newest first
    #[command(after_help = "Examples:
  once inbox ls
  once inbox ls stripe --progress dead,in_doubt
  once inbox ls stripe --rejected")]
    Ls(LsArgs),
    /// Show an event, its deliveries and, if asked, its content
    #[command(after_help = "Examples:
  once inbox show evt_1NG8Du2eZvKYlo2C
  once inbox show evt_1NG8Du2eZvKYlo2C --body | jq .")]
    Show(ShowArgs),
    /// Give the failed deliveries of an event new attempts
    #[command(after_help = "Examples:
  once inbox retry evt_1NG8Du2eZvKYlo2C
  once inbox retry evt_1NG8Du2eZvKYlo2C --again")]
    Retry(RetryArgs),
    /// Deliver an event again on purpose, to the handlers that it had when it arrived
    #[command(after_help = "Examples:
  once inbox replay evt_1NG8Du2eZvKYlo2C --dry-run
  once inbox replay evt_1NG8Du2eZvKYlo2C")]
    Replay(ReplayArgs),
    /// Follow events, one line for each change
    #[command(after_help = "Examples:
  once inbox tail
  once inbox tail stripe --jsonl | jq -r .key")]
    Tail(TailArgs),
    /// Send a correctly signed sample event, without an account at the vendor
    #[command(after_help = "Without [hook.SOURCE] in the policy, everything happens in a temporary ledger.

Examples:
  once inbox try stripe
  once inbox try github --json")]
    Try(trial::TryArgs),
}

#[derive(Debug, Args)]
struct LsArgs {
    /// Only events of this source
    #[arg(value_name = "SOURCE")]
    source: Option<String>,
    /// Only events in these places: pending, done, dead, in_doubt, expired (comma-separated)
    #[arg(long, value_name = "WORDS", value_delimiter = ',', value_parser = progress)]
    progress: Vec<Progress>,
    /// Only events of this kind
    #[arg(long = "type", value_name = "KIND")]
    kind: Option<String>,
    /// Maximum number of events
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    limit: u32,
    /// List requests that ran nothing instead: not authentic, or suspected replays. A running server remembers them
    #[arg(long, requires = "source")]
    rejected: bool,
    #[command(flatten)]
    server: remote::ServerArgs,
    /// Print one JSON object on each line
    #[arg(long)]
    jsonl: bool,
}

#[derive(Debug, Args)]
struct EventArgs {
    /// The event: the vendor's id, its key, or the id of its record
    #[arg(value_name = "EVENT")]
    event: String,
    /// The source, if several have an event with this id
    #[arg(long, value_name = "SOURCE")]
    source: Option<String>,
}

#[derive(Debug, Args)]
struct ShowArgs {
    #[command(flatten)]
    event: EventArgs,
    /// Print the content of the event, byte for byte, and nothing else
    #[arg(long)]
    body: bool,
}

#[derive(Debug, Args)]
struct RetryArgs {
    #[command(flatten)]
    event: EventArgs,
    /// Settle deliveries in doubt as "did not happen" on your word, which is recorded
    #[arg(long)]
    again: bool,
    #[command(flatten)]
    dry: DryRunArgs,
}

#[derive(Debug, Args)]
struct ReplayArgs {
    #[command(flatten)]
    event: EventArgs,
    #[command(flatten)]
    dry: DryRunArgs,
}

#[derive(Debug, Args)]
struct TailArgs {
    /// Only events of this source
    #[arg(value_name = "SOURCE")]
    source: Option<String>,
    /// Print one JSON object on each line
    #[arg(long)]
    jsonl: bool,
}

fn progress(word: &str) -> Result<Progress, String> {
    let known = Progress::ALL.into_iter().find(|known| known.as_str() == word.trim());
    known.ok_or_else(|| format!("must be one of {}", Progress::ALL.map(Progress::as_str).join(", ")))
}

pub(super) fn run(context: &Context, args: &InboxArgs) -> Ended {
    match &args.command {
        InboxCommand::Ls(args) if args.rejected => remote::rejected(context, args),
        InboxCommand::Ls(args) => ls(context, args),
        InboxCommand::Show(args) => show(context, args),
        InboxCommand::Retry(args) => retry(context, args),
        InboxCommand::Replay(args) => replay(context, args),
        InboxCommand::Tail(args) => tail(context, args),
        InboxCommand::Try(args) => trial::run(context, args),
    }
}

/// The events of the context's ledger.
struct Inbox {
    events: Events,
    ledger: onceward::Blocking,
}

impl Inbox {
    fn open(context: &Context) -> Result<Self, CommandError> {
        let store = context.store(IfMissing::Fail)?;
        Ok(Self { ledger: Ledger::new(store.clone()).blocking(), events: Events::new(store) })
    }

    fn find(&self, args: &EventArgs) -> Result<(String, std::sync::Arc<Record>, EventView), CommandError> {
        let found = self.events.find(&args.event, args.source.as_deref());
        let (source, record) = self.ledger.wait_for(found)?;
        let view = self.ledger.wait_for(self.events.view(&source, &record))?;
        Ok((source, record, view))
    }
}

fn ls(context: &Context, args: &LsArgs) -> Ended {
    let inbox = Inbox::open(context)?;
    let wanted = Wanted {
        source: args.source.clone(),
        progress: args.progress.clone(),
        kind: args.kind.clone(),
        limit: args.limit.max(1) as usize,
        ..Wanted::default()
    };
    let page = inbox.ledger.wait_for(inbox.events.list(&wanted))?;
    if args.jsonl {
        page.events.iter().for_each(answer::json);
        return Ok(ExitCode::SUCCESS);
    }
    let cut = page.next_cursor.map(|_| format!("only the newest {} are listed; -n lists more", args.limit));
    answer::success_with(context.global.json, "noop", &page.events, cut.iter().cloned().collect(), || {
        if page.events.is_empty() {
            return "no events".to_owned();
        }
        let mut text = table(&page.events);
        if let Some(cut) = &cut {
            text.push_str(&format!("\n({cut})"));
        }
        text
    });
    Ok(ExitCode::SUCCESS)
}

fn table(events: &[EventView]) -> String {
    let rows = events.iter().map(|event| {
        vec![
            (event.received.get(..19).unwrap_or(&event.received).replace('T', " "), DIM),
            (event.source.clone(), BOLD),
            (event.key.clone(), anstyle::Style::new()),
            (event.kind.clone().unwrap_or_default(), anstyle::Style::new()),
            (event.progress.as_str().to_owned(), progress_style(event.progress)),
            (deliveries(event), DIM),
        ]
    });
    let heading = ["received", "source", "event", "type", "progress", "handlers"];
    answer::table(&heading, &rows.collect::<Vec<_>>())
}

/// What became of an event at its handlers, in a few words.
fn deliveries(event: &EventView) -> String {
    let mut words: Vec<String> =
        event.deliveries.iter().map(|one| format!("{} {}", one.handler, one.state)).collect();
    if event.duplicates > 0 {
        words.push(counted(event.duplicates, "duplicate"));
    }
    words.join(", ")
}

fn progress_style(progress: Progress) -> anstyle::Style {
    match progress {
        Progress::Pending => CYAN,
        Progress::Done => GREEN,
        Progress::Dead => RED,
        Progress::InDoubt => YELLOW.bold(),
        Progress::Expired => DIM,
    }
}

fn show(context: &Context, args: &ShowArgs) -> Ended {
    let inbox = Inbox::open(context)?;
    let (_, event, view) = inbox.find(&args.event)?;
    if args.body {
        let body = event.outcome.as_ref().and_then(|outcome| outcome.body.as_ref());
        let body = body.ok_or_else(|| {
            CommandError::invalid(
                "the content of this event has expired, or is sealed with a key that is missing",
            )
        })?;
        drop(answer::stored(&mut std::io::stdout(), body));
        return Ok(ExitCode::SUCCESS);
    }
    answer::success(context.global.json, "noop", &view, || text(&view));
    Ok(ExitCode::SUCCESS)
}

/// An event with everything that is known about it.
fn text(view: &EventView) -> String {
    let mut lines = vec![format!(
        "{} {}  {}",
        styled(BOLD, one_line(&view.source)),
        one_line(&view.key),
        styled(progress_style(view.progress), view.progress.as_str())
    )];
    let mut fact = |name: &str, value: Option<&str>| {
        lines.extend(value.map(|value| format!("  {name:<11} {}", one_line(value))));
    };
    fact("type", view.kind.as_deref());
    fact("received", Some(&view.received));
    fact("occurred", view.occurred.as_deref());
    fact("id", view.id_reused.then_some(view.id.as_deref()).flatten());
    fact("record", Some(&view.operation));
    fact("note", view.id_reused.then_some("its id, which is not signed, was used before for other content"));
    fact("duplicates", (view.duplicates > 0).then(|| view.duplicates.to_string()).as_deref());
    fact("occurrence", (view.occurrence > 1).then(|| view.occurrence.to_string()).as_deref());
    lines.extend(view.deliveries.iter().map(delivery_line));
    if view.deliveries.is_empty() {
        lines.push("  no handler wanted it".to_owned());
    }
    lines.join("\n")
}

/// A number with its noun.
fn counted(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

fn delivery_line(delivery: &DeliveryView) -> String {
    let DeliveryView { handler, state, attempts, operation, .. } = delivery;
    let reason =
        delivery.reason.as_deref().map(|reason| format!(": {}", one_line(reason))).unwrap_or_default();
    let attempts = counted(u64::from(*attempts), "attempt");
    format!("  {handler} {state}, {attempts}{reason}  {}", styled(DIM, operation))
}

fn retry(context: &Context, args: &RetryArgs) -> Ended {
    let inbox = Inbox::open(context)?;
    let (source, event, view) = inbox.find(&args.event)?;
    if args.dry.dry_run {
        answer::success(context.global.json, "would_update", &view, || {
            format!("would_update: would give the failed deliveries new attempts\n{}", text(&view))
        });
        return Ok(ExitCode::SUCCESS);
    }
    let again = if args.again { Again::Yes } else { Again::No };
    let retried = inbox.events.retry(&source, &event, again, "a person (once inbox retry --again)");
    let view = inbox.ledger.wait_for(retried)?;
    let (next, warnings) = next_delivery(context, &view);
    answer::success_with(context.global.json, "updated", &view, warnings, || {
        format!("{next}\n{}", text(&view))
    });
    Ok(ExitCode::SUCCESS)
}

fn replay(context: &Context, args: &ReplayArgs) -> Ended {
    let inbox = Inbox::open(context)?;
    let (source, event, view) = inbox.find(&args.event)?;
    if args.dry.dry_run {
        let handlers: Vec<&str> = view.deliveries.iter().map(|one| one.handler.as_str()).collect();
        let what = format!(
            "would deliver it again to {}, as occurrence {}",
            handlers.join(", "),
            view.occurrence + 1
        );
        answer::success(context.global.json, "would_create", &view, || format!("would_create: {what}"));
        return Ok(ExitCode::SUCCESS);
    }
    let view = inbox.ledger.wait_for(inbox.events.replay(&source, &event))?;
    let (next, warnings) = next_delivery(context, &view);
    answer::success_with(context.global.json, "created", &view, warnings, || {
        format!("{next}\n{}", text(&view))
    });
    Ok(ExitCode::SUCCESS)
}

/// When the event is delivered, and a warning about handlers that this policy does not have.
fn next_delivery(context: &Context, view: &EventView) -> (String, Vec<String>) {
    let hooks = onceward_http::Config::from_policy(&context.policy).map(|config| config.hooks);
    let hooks = hooks.unwrap_or_default();
    let hook = hooks.get(&view.source);
    let is_missing = |one: &&DeliveryView| hook.is_none_or(|hook| !hook.handlers.contains_key(&one.handler));
    let missing: Vec<&str> =
        view.deliveries.iter().filter(is_missing).map(|one| one.handler.as_str()).collect();
    if missing.is_empty() {
        return ("a running `once serve` delivers it within seconds".to_owned(), Vec::new());
    }
    let missing = missing.join(", ");
    let warning = format!(
        "this policy has no [hook.{}.handler] for {missing}: only a server whose policy has it delivers there",
        view.source
    );
    (warning.clone(), vec![warning])
}

/// A change of an event.
#[derive(Serialize)]
struct Change<'a> {
    at: String,
    #[serde(flatten)]
    event: &'a EventView,
}

fn tail(context: &Context, args: &TailArgs) -> Ended {
    use std::io::Write;
    let inbox = Inbox::open(context)?;
    let wanted = Wanted { source: args.source.clone(), limit: FOLLOWED, ..Wanted::default() };
    let json = args.jsonl || context.global.json;
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let mut page = inbox.ledger.wait_for(inbox.events.list(&wanted))?.events;
        page.reverse();
        let mut newest = BTreeMap::new();
        for event in &page {
            let now = format!("{} {}", event.progress.as_str(), deliveries(event));
            if seen.get(&event.operation) != Some(&now) {
                let at = onceward::rfc3339(inbox.ledger.clock_ms());
                let printed = if json {
                    let text = serde_json::to_string(&Change { at, event }).unwrap_or_default();
                    writeln!(std::io::stdout(), "{}", onceward::text::json(&text))
                } else {
                    let line = format!(
                        "{}  {}  {}  {} {}  {}",
                        styled(DIM, at.get(11..19).unwrap_or(&at)),
                        styled(progress_style(event.progress), format!("{:<8}", event.progress.as_str())),
                        one_line(&event.source),
                        one_line(&event.key),
                        one_line(event.kind.as_deref().unwrap_or_default()),
                        styled(DIM, deliveries(event)),
                    );
                    writeln!(anstream::stdout(), "{}", onceward::text::coloured(&line))
                };
                if printed.and_then(|()| std::io::stdout().flush()).is_err() {
                    // The reader has closed the pipe.
                    return Ok(ExitCode::SUCCESS);
                }
            }
            newest.insert(event.operation.clone(), now);
        }
        seen = newest;
        std::thread::sleep(std::time::Duration::from_millis(LOOK_MS));
    }
}

/// Where a source takes requests.
fn path_of(source: &str) -> String {
    format!("/hooks/{source}")
}
