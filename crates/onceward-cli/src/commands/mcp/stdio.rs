//! A server over stdio.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onceward::Ledger;
use onceward_mcp::{Explained, HostScope, Next, Proxy, Ruling, Streams};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{ServeArgs, command_identity, options};
use crate::answer;
use crate::context::{Context, IfMissing};
use crate::environment::PassLedger;
use crate::exit::{CommandError, Ended};

/// How long a server that has closed its output may take to exit.
const GRACE: Duration = Duration::from_secs(5);
/// Time limit for the rest of the shutdown, after all calls have ended.
const LAST_WRITES: Duration = Duration::from_millis(300);
/// How often a server may exit without a message before it is no longer restarted, and the first pause before a
/// restart.
const DEATHS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Clients that have closed our input send SIGTERM two seconds later, and SIGKILL two seconds after that. Shortly
/// before, calls that are still running are recorded as in doubt, and the server is asked to end.
const KILLED_AFTER: Duration = Duration::from_millis(1_500);
/// How often to check whether the client has disconnected.
const LOOK_MS: u64 = 100;
/// Session ids that hosts put into the environment of the servers they start.
const SESSIONS: [&str; 2] = ["CLAUDE_CODE_SESSION_ID", "GROK_SESSION_ID"];
/// Launchers of servers, and their subcommands.
const LAUNCHERS: [&str; 16] = [
    "npx", "bunx", "pnpx", "uvx", "uv", "node", "bun", "deno", "python", "python3", "env", "docker", "run",
    "exec", "tool", "sh",
];

/// Proxies between this process's streams and the server's, until either ends.
pub(super) fn serve(context: &Context, args: &ServeArgs, server: &[OsString]) -> Ended {
    let ledger = Ledger::new(context.store(IfMissing::Create)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .map_err(|error| CommandError::Outside(format!("cannot start the runtime: {error}")))?;
    let (client_in, client_out) = own_streams()?;
    let options = options(context, args, server_name(server), command_identity(server), scope(args));
    let withheld = withheld(context, if args.pass_ledger { PassLedger::Yes } else { PassLedger::No });
    let (mut child, to_server, mut from_server) = start(server, &withheld)?;
    let streams = Streams { client: Box::new(client_out), server: Box::new(to_server) };
    let proxy = Proxy::new(ledger, options, streams, runtime.handle().clone());
    let pid = Arc::new(AtomicU32::new(child.id()));
    watch_signals(&proxy, &pid, args.drain)?;
    let from_client = Arc::clone(&proxy);
    let pump = std::thread::spawn(move || from_client.pump_client(client_in));
    let mut deaths = 0;
    let status = loop {
        proxy.pump_server(from_server);
        let status = ended(&mut child)?;
        deaths = if proxy.server_has_spoken() { 0 } else { deaths + 1 };
        let is_first = deaths == 1 && !proxy.was_restarted();
        proxy.server_gone(&format!("the server ended ({status}) before it answered"));
        // Restarting does not help a server that exits before its first message.
        if is_first || deaths > DEATHS || proxy.wait_for_client() == Next::End {
            break status;
        }
        std::thread::sleep(pause(deaths));
        answer::talk(&format!("once mcp: the server ended ({status}); restarting it"));
        let Ok((again, to_server, output)) = start(server, &withheld) else { break status };
        pid.store(again.id(), Ordering::SeqCst);
        (child, from_server) = (again, output);
        proxy.server_started(Box::new(to_server));
    };
    proxy.no_more_servers();
    // Everything that the runtime still holds is already recorded, or in doubt as it should be.
    runtime.shutdown_timeout(LAST_WRITES);
    wait_for_end(&pump);
    // The last user closes the ledger, which then writes the replay counts.
    drop(proxy);
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Waits briefly for a thread that is about to end. A thread that still waits for a connected client is left alone.
fn wait_for_end(pump: &JoinHandle<()>) {
    let begun = Instant::now();
    while !pump.is_finished() && begun.elapsed() < LAST_WRITES {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The pause before a restart, by how often the server has exited without a message.
fn pause(deaths: u32) -> Duration {
    if deaths == 0 { Duration::ZERO } else { FIRST_PAUSE * 2_u32.pow(deaths - 1) }
}

fn scope(args: &ServeArgs) -> HostScope {
    let session = || SESSIONS.iter().find_map(|name| std::env::var(name).ok());
    match (&args.scope, session().filter(|session| !session.is_empty())) {
        (Some(scope), _) => HostScope::Chosen(scope.clone()),
        (None, Some(session)) => HostScope::Session(session),
        (None, None) => {
            answer::talk(
                "once mcp: no scope given, so the scope is this connection: unless the client sends a conversation \
                 id, nothing is remembered across restarts (set --scope or ONCE_SCOPE)",
            );
            HostScope::connection()
        }
    }
}

/// Unbuffered standard input and output.
fn own_streams() -> Result<(File, File), CommandError> {
    let own = |stream: std::io::Result<std::os::fd::OwnedFd>| {
        let failed = |error| CommandError::Outside(format!("cannot use the standard streams: {error}"));
        stream.map(File::from).map_err(failed)
    };
    let client_in = own(std::io::stdin().as_fd().try_clone_to_owned())?;
    Ok((client_in, own(std::io::stdout().as_fd().try_clone_to_owned())?))
}

/// The variables that a server does not get: it is another's program, and need not know passwords of ours.
pub(super) fn withheld(context: &Context, pass: PassLedger) -> Vec<String> {
    let ledger = std::env::var("ONCE_LEDGER").is_ok_and(|url| onceward::text::has_password(&url));
    let ledger = (ledger && pass == PassLedger::No).then_some("ONCE_LEDGER");
    if ledger.is_some() {
        answer::talk(
            "once mcp: the server does not get ONCE_LEDGER, which contains a password (--pass-ledger passes it on)",
        );
    }
    let environment = context.environment(pass);
    let names = ledger.into_iter().chain(["ONCE_MCP_TOKEN"]).chain(environment.removed());
    names.map(str::to_owned).collect()
}

pub(super) fn start(
    server: &[OsString],
    withheld: &[String],
) -> Result<(Child, ChildStdin, ChildStdout), CommandError> {
    let Some((program, arguments)) = server.split_first() else {
        return Err(CommandError::invalid("no server given; give its command after `--`"));
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    for name in withheld {
        command.env_remove(name);
    }
    crate::sealing::withhold_key(&mut command);
    let not_started =
        |why: String| CommandError::Outside(format!("cannot start {}: {why}", program.to_string_lossy()));
    let mut child = command.spawn().map_err(|error| not_started(error.to_string()))?;
    match (child.stdin.take(), child.stdout.take()) {
        (Some(to), Some(from)) => Ok((child, to, from)),
        (_, _) => Err(not_started("it has no streams".to_owned())),
    }
}

/// A signal ends the server, but only after the running calls have ended.
fn watch_signals(proxy: &Arc<Proxy>, pid: &Arc<AtomicU32>, drain_ms: u64) -> Result<(), CommandError> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| CommandError::Outside(format!("cannot watch for signals: {error}")))?;
    let (proxy, pid, drain) = (Arc::downgrade(proxy), Arc::clone(pid), Duration::from_millis(drain_ms));
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let Some(proxy) = proxy.upgrade() else { return };
            let begun = Instant::now();
            let patience = |client_left: bool| if client_left { drain.min(KILLED_AFTER) } else { drain };
            while begun.elapsed() < patience(proxy.client_has_left()) && !proxy.wait_idle(LOOK_MS) {}
            proxy.stop();
            let Ok(pid) = i32::try_from(pid.load(Ordering::SeqCst)).map(Pid::from_raw) else { continue };
            let signal = Signal::try_from(signal).unwrap_or(Signal::SIGTERM);
            match kill(pid, signal) {
                // It may have exited already.
                Ok(()) | Err(_) => {}
            }
        }
    });
    Ok(())
}

/// How the server ended. A server that keeps running after closing its output is stopped.
pub(super) fn ended(child: &mut Child) -> Result<ExitStatus, CommandError> {
    let failed =
        |error: std::io::Error| CommandError::Outside(format!("cannot wait for the server: {error}"));
    let begun = Instant::now();
    while begun.elapsed() < GRACE {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().map_err(failed)?;
    child.wait().map_err(failed)
}

/// Starts the server, asks it for its tools, and says what each of them is.
pub(super) fn explained(
    context: &Context,
    ruling: Ruling,
    server: &[OsString],
) -> Result<Vec<Explained>, CommandError> {
    let (mut child, to_server, from_server) = start(server, &withheld(context, PassLedger::No))?;
    let tools = onceward_mcp::explain(ruling, to_server, from_server);
    ended(&mut child)?;
    Ok(tools?)
}

/// A short name for a command: `npx -y @modelcontextprotocol/server-filesystem@1 DIR` is `filesystem`.
pub(super) fn server_name(server: &[OsString]) -> String {
    let words = server.iter().map(|word| word.to_string_lossy().into_owned());
    let base = |word: &str| {
        let name = Path::new(word).file_name().and_then(OsStr::to_str).unwrap_or(word).to_owned();
        name.split('@').next().unwrap_or_default().to_owned()
    };
    let telling = words.filter(|word| !word.starts_with('-')).map(|word| base(&word));
    let name = telling.into_iter().find(|name| !name.is_empty() && !LAUNCHERS.contains(&name.as_str()));
    let name = name.unwrap_or_else(|| "server".to_owned());
    let name = name.trim_end_matches(".py").trim_end_matches(".js").trim_end_matches(".mjs");
    let short = name.trim_start_matches("mcp-server-").trim_start_matches("server-");
    if short.is_empty() { name.to_owned() } else { short.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_called_by_the_word_that_tells() {
        let name = |words: &[&str]| server_name(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(
            name(&["npx", "-y", "@modelcontextprotocol/server-filesystem@2026.8.31", "/x"]),
            "filesystem"
        );
        assert_eq!(name(&["uvx", "mcp-server-git", "--repository", "r"]), "git");
        assert_eq!(name(&["/usr/bin/python3", "shop.py"]), "shop");
        assert_eq!(name(&["./server"]), "server");
        assert_eq!(name(&["node"]), "server");
    }
}
