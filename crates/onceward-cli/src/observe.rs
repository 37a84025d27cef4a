//! Logs and traces of a server: where the events and spans of `onceward-http` go.

use std::io::{IsTerminal, Write};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use onceward::Redaction;
#[cfg(feature = "otel")]
use onceward_http::telemetry::otel::{self, Exporter};
use tokio::runtime::Handle;
use tracing_subscriber::filter::{FilterExt, LevelFilter, Targets, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry};

use crate::exit::CommandError;

/// The crates whose events are logged. What other crates say can quote requests.
const OWN: [&str; 4] = ["onceward", "onceward_http", "onceward_store", "onceward_mcp"];
/// The address of the collector, and of its endpoint for traces, as OpenTelemetry names the variables.
const COLLECTOR: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
#[cfg(feature = "otel")]
const SERVICE: &str = "OTEL_SERVICE_NAME";

/// What is logged, and how.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// What to log to stderr: off, error, warn, info, debug or trace
    #[arg(long, env = "ONCE_LOG", default_value = "info", value_name = "LEVEL", value_parser = LevelFilter::from_str)]
    log: LevelFilter,
    /// How to log: json, or text [default: text on a terminal, otherwise json]
    #[arg(long, env = "ONCE_LOG_FORMAT", value_enum, value_name = "FORMAT", hide_possible_values = true)]
    log_format: Option<LogFormat>,
}

/// How a log line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// One JSON object on each line
    Json,
    /// Text for people
    Text,
}

/// Logs and traces of this process, until it ends.
#[derive(Debug)]
pub(crate) struct Observed {
    #[cfg(feature = "otel")]
    exporter: Option<Exporter>,
}

impl Observed {
    /// Sends the traces that are left.
    pub(crate) fn end(self) {
        #[cfg(feature = "otel")]
        if let Some(exporter) = self.exporter {
            exporter.shut_down();
        }
    }
}

/// Starts to log, and to export traces if a collector is configured. `redact` removes from logs what the policy
/// removes from results.
pub(crate) fn start(args: &LogArgs, redact: Redaction, runtime: &Handle) -> Result<Observed, CommandError> {
    let format = args
        .log_format
        .unwrap_or_else(|| if std::io::stderr().is_terminal() { LogFormat::Text } else { LogFormat::Json });
    let logs = tracing_subscriber::fmt::layer().with_writer(Redacted { redact, format }).with_ansi(false);
    let logs: Box<dyn Layer<Registry> + Send + Sync> = match format {
        LogFormat::Json => {
            Box::new(logs.json().flatten_event(true).with_current_span(false).with_span_list(false))
        }
        LogFormat::Text => Box::new(logs),
    };
    // Log lines do not show spans. If no collector wants them either, they cost nothing.
    let events = filter_fn(|metadata| metadata.is_event());
    let subscriber = tracing_subscriber::registry().with(logs.with_filter(targets(args.log).and(events)));
    let set = |set: Result<(), tracing::subscriber::SetGlobalDefaultError>| {
        set.map_err(|error| CommandError::Outside(format!("cannot start the log: {error}")))
    };
    #[cfg(feature = "otel")]
    {
        let exporter = exporter(runtime)?;
        let traces =
            exporter.as_ref().map(|exporter| exporter.layer().with_filter(targets(LevelFilter::INFO)));
        set(tracing::subscriber::set_global_default(subscriber.with(traces)))?;
        Ok(Observed { exporter })
    }
    #[cfg(not(feature = "otel"))]
    {
        let _ = runtime;
        if let Some(name) = [TRACES, COLLECTOR].into_iter().find(|name| variable(name).is_some()) {
            return Err(CommandError::invalid(format!(
                "{name} is set, and this build cannot export traces: it was built without the feature `otel`"
            )));
        }
        set(tracing::subscriber::set_global_default(subscriber))?;
        Ok(Observed {})
    }
}

/// Events and spans of our own crates, from this level on.
fn targets(level: LevelFilter) -> Targets {
    Targets::new().with_targets(OWN.map(|name| (name, level)))
}

/// The exporter to the collector that is configured, if one is.
#[cfg(feature = "otel")]
fn exporter(runtime: &Handle) -> Result<Option<Exporter>, CommandError> {
    let Some(url) = traces_url() else { return Ok(None) };
    let service = variable(SERVICE).unwrap_or_else(|| "onceward".to_owned());
    let exporter = otel::exporter(&url, &service, runtime.clone())
        .map_err(|error| CommandError::invalid(format!("{TRACES} or {COLLECTOR}: {error}")))?;
    Ok(Some(exporter))
}

/// The full address to which traces are sent, if one is configured.
#[cfg(feature = "otel")]
fn traces_url() -> Option<String> {
    variable(TRACES).or_else(|| {
        let collector = variable(COLLECTOR)?;
        Some(format!("{}/v1/traces", collector.trim_end_matches('/')))
    })
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// stderr, with what the policy redacts removed from each line.
struct Redacted {
    redact: Redaction,
    format: LogFormat,
}

impl<'a> MakeWriter<'a> for Redacted {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { to: self, text: Vec::new() }
    }
}

/// One line of the log. It is written when it is complete.
struct Line<'a> {
    to: &'a Redacted,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.text);
        let text = text.trim_end_matches('\n');
        let line = match self.to.format {
            LogFormat::Json => self.to.redact.json(text),
            LogFormat::Text => self.to.redact.text(text),
        };
        // A log that cannot be written must not stop the server.
        drop(writeln!(std::io::stderr(), "{}", onceward::text::one_line(&line)));
    }
}
