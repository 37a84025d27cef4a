//! A server over streamable HTTP.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use onceward::Ledger;
use onceward_mcp::http::{self, Gate, Limits, Reach, Remote, Renewal};
use onceward_mcp::{Explained, HostScope, Ruling};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::{RuleArgs, ServeArgs, identity, options};
use crate::answer;
use crate::cli::HeaderArgs;
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};

/// Time limit for the rest of the shutdown, after all calls have ended.
const LAST_WRITES: Duration = Duration::from_millis(300);

/// Listens for clients and proxies them to the server until a signal arrives.
pub(super) fn serve(context: &Context, args: &ServeArgs, url: &str) -> Ended {
    if Reach::of(args.listen.ip()) == Reach::Network && args.token.is_none() {
        return Err(CommandError::invalid(format!(
            "{} can be reached from other machines, so clients need a token: give --token, or listen on 127.0.0.1",
            args.listen
        )));
    }
    let remote = Remote::new(url)?;
    let ledger = Ledger::new(context.store(IfMissing::Create)?);
    let runtime = runtime()?;
    let shutdown = signal("once mcp")?;
    let listener = runtime.block_on(TcpListener::bind(args.listen));
    let listener = listener
        .map_err(|error| CommandError::Outside(format!("cannot listen on {}: {error}", args.listen)))?;
    let address = listener.local_addr().unwrap_or(args.listen);
    let (path, shown) = (remote.shown_path(), remote.shown());
    let identity = identity(&[url.into()]);
    let options = options(context, args, server_name(url), identity, scope(args));
    let renewal = if args.trust_subject { Renewal::SessionOrSubject } else { Renewal::Session };
    let mut limits = Limits::default();
    limits.token.clone_from(&args.token);
    limits.renewal = renewal;
    limits.ignored_headers.clone_from(&args.ignored_headers);
    let gate = Gate::new(ledger, options, remote, limits, runtime.handle().clone());
    said(address, &path, &shown);
    runtime.block_on(http::serve(listener, gate, async {
        // The thread that watches for signals lives as long as this process.
        drop(shutdown.await);
    }));
    // Everything that the runtime still holds is already recorded, or in doubt as it should be. The last user
    // closes the ledger, which then writes the replay counts.
    runtime.shutdown_timeout(LAST_WRITES);
    Ok(ExitCode::SUCCESS)
}

fn said(address: SocketAddr, path: &str, server: &str) {
    answer::talk(&format!("once mcp: listening on http://{address}{path} for {server}"));
    if Reach::of(address.ip()) == Reach::Network {
        answer::talk(
            "once mcp: this address can be reached from the network, without encryption; clients need the token",
        );
    }
}

fn scope(args: &ServeArgs) -> HostScope {
    match &args.scope {
        Some(scope) => HostScope::Chosen(scope.clone()),
        None => {
            answer::talk(
                "once mcp: no scope given: unless a client sends a conversation id or has a session, all callers of \
                 this listener share one, and nothing is remembered across restarts (set --scope or ONCE_SCOPE)",
            );
            HostScope::connection()
        }
    }
}

/// Asks the server for its tools, and classifies each.
pub(super) fn explained(ruling: Ruling, rules: &RuleArgs, url: &str) -> Result<Vec<Explained>, CommandError> {
    let remote = Remote::new(url)?;
    let headers = rules.headers.read()?;
    let asked = http::explain(ruling, remote, &headers);
    Ok(runtime()?.block_on(asked)?)
}

impl HeaderArgs {
    pub(super) fn are_given(&self) -> bool {
        !self.headers.is_empty() || !self.header_variables.is_empty()
    }

    /// The headers, with their values.
    pub(super) fn read(&self) -> Result<Vec<(String, String)>, CommandError> {
        let given = self.headers.iter().map(|text| header(text));
        let named = self.header_variables.iter().map(|text| header_of_variable(text));
        given.chain(named).collect()
    }
}

fn header(text: &str) -> Result<(String, String), CommandError> {
    match text.split_once(':') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        // It may contain a password, so the error does not repeat it.
        None => Err(CommandError::invalid("--header takes `NAME: VALUE`; one value has no colon")),
    }
}

/// A header whose value is in the environment, where other users cannot see it.
fn header_of_variable(text: &str) -> Result<(String, String), CommandError> {
    let Some((name, variable)) = text.split_once('=') else {
        // A secret may have been given by mistake, so the error does not repeat it.
        return Err(CommandError::invalid("--header-env takes NAME=VARIABLE; one value has no `=`"));
    };
    match std::env::var(variable) {
        Ok(value) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        Err(_) => Err(CommandError::invalid(format!(
            "--header-env {name}: the environment variable is not set, or is not text"
        ))),
    }
}

/// A short name for an address: its host, and its port if it has one.
pub(super) fn server_name(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit('@').next().unwrap_or_default().to_owned()
}

pub(crate) fn runtime() -> Result<Runtime, CommandError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| CommandError::Outside(format!("cannot start the runtime: {error}")))
}

/// Completes at the first signal to end. The second one exits at once.
pub(crate) fn signal(command: &'static str) -> Result<oneshot::Receiver<()>, CommandError> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| CommandError::Outside(format!("cannot watch for signals: {error}")))?;
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let mut sender = Some(sender);
        for signal in signals.forever() {
            match sender.take() {
                Some(sender) => {
                    answer::talk(&format!(
                        "{command}: shutting down when the running calls have ended; repeat to exit at once"
                    ));
                    match sender.send(()) {
                        // If the receiver is gone, the shutdown is already complete.
                        Ok(()) | Err(()) => {}
                    }
                }
                None => drop(signal_hook::low_level::emulate_default_handler(signal)),
            }
        }
    });
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_called_by_its_host() {
        assert_eq!(server_name("https://mcp.example.com/v1/mcp?a=b"), "mcp.example.com");
        assert_eq!(server_name("http://127.0.0.1:9000"), "127.0.0.1:9000");
        assert_eq!(server_name("https://bob:secret@mcp.example.com/"), "mcp.example.com");
    }

    #[test]
    fn a_header_has_a_name_and_a_value() {
        assert_eq!(
            header("Authorization: Bearer a:b").unwrap(),
            ("Authorization".to_owned(), "Bearer a:b".to_owned())
        );
        assert!(header("secret").is_err());
    }
}
