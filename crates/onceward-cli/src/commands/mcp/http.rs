//! A server by streamable HTTP.

use std::net::SocketAddr;
use std::process::ExitCode;

use onceward::Ledger;
use onceward_mcp::http::{self, Gate, Limits, Reach, Remote};
use onceward_mcp::{Explained, HostScope, Ruling};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::{RuleArgs, ServeArgs, identity, options};
use crate::answer;
use crate::context::{Context, Missing};
use crate::exit::{CommandError, Ended};

/// Listens for clients and stands between them and the server, until a signal comes.
pub(super) fn serve(context: &Context, args: &ServeArgs, url: &str) -> Ended {
    if Reach::of(args.listen.ip()) == Reach::Network && args.token.is_none() {
        return Err(CommandError::invalid(format!(
            "{} can be reached from other machines, so clients must show a token: give --token, or listen on 127.0.0.1",
            args.listen
        )));
    }
    let remote = Remote::new(url)?;
    let ledger = Ledger::new(context.store(Missing::Make)?);
    let runtime = runtime()?;
    let shutdown = signal()?;
    let listener = runtime.block_on(TcpListener::bind(args.listen));
    let listener = listener
        .map_err(|error| CommandError::Outside(format!("cannot listen on {}: {error}", args.listen)))?;
    let address = listener.local_addr().unwrap_or(args.listen);
    let path = remote.path().to_owned();
    let identity = identity(&[url.into()]);
    let options = options(context, args, server_name(url), identity, scope(args));
    let limits = Limits { token: args.token.clone(), ..Limits::default() };
    let gate = Gate::new(ledger, options, remote, limits, runtime.handle().clone());
    said(address, &path, url);
    runtime.block_on(http::serve(listener, gate, async {
        // Whoever watches for signals is there as long as this process.
        drop(shutdown.await);
    }));
    // What the runtime still holds is written down already, or in doubt as it should be.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

fn said(address: SocketAddr, path: &str, url: &str) {
    answer::talk(&format!("once mcp: listening on http://{address}{path} before {url}"));
    if Reach::of(address.ip()) == Reach::Network {
        answer::talk(
            "once mcp: others on the network can reach this, without encryption; they need the token",
        );
    }
}

fn scope(args: &ServeArgs) -> HostScope {
    match &args.scope {
        Some(scope) => HostScope::Chosen(scope.clone()),
        None => {
            answer::talk(
                "once mcp: no scope was given: unless a client names its conversation or has a session, all callers of \
                 this listener share one, and nothing is remembered across restarts (--scope or ONCE_SCOPE names one)",
            );
            HostScope::connection()
        }
    }
}

/// Asks the server for its tools, and says what each of them is.
pub(super) fn explained(ruling: Ruling, rules: &RuleArgs, url: &str) -> Result<Vec<Explained>, CommandError> {
    let remote = Remote::new(url)?;
    let headers: Vec<(String, String)> =
        rules.headers.iter().map(|text| header(text)).collect::<Result<_, _>>()?;
    let asked = http::explain(ruling, &remote, &headers);
    Ok(runtime()?.block_on(asked)?)
}

fn header(text: &str) -> Result<(String, String), CommandError> {
    match text.split_once(':') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        // It may hold a password, so it is not repeated.
        None => {
            Err(CommandError::invalid("a header is given as `NAME: VALUE`; one that was given has no colon"))
        }
    }
}

/// A short name made of an address: its host, and its port where it has one.
pub(super) fn server_name(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default().to_owned()
}

fn runtime() -> Result<Runtime, CommandError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| CommandError::Outside(format!("cannot start the runtime: {error}")))
}

/// Comes true with the first signal to end. The second one ends at once.
fn signal() -> Result<oneshot::Receiver<()>, CommandError> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| CommandError::Outside(format!("cannot watch for signals: {error}")))?;
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let mut sender = Some(sender);
        for signal in signals.forever() {
            match sender.take() {
                Some(sender) => {
                    answer::talk("once mcp: ending, as soon as the calls under way have; again ends at once");
                    match sender.send(()) {
                        // Whoever does not wait any more has ended already.
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
