//! `once mcp`: any MCP server, exactly once.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use data_encoding::BASE32_NOPAD;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onceward::{KeyPolicy, Ledger};
use onceward_mcp::{Explained, Exposure, HostScope, Options, Proxy, Streams, Trust};
use sha2::{Digest, Sha256};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::answer::{self, BOLD, styled};
use crate::cli::{self, DryRunArgs};
use crate::context::{Context, Missing};
use crate::exit::{CommandError, Ended};

/// How long a server that has closed its output gets to end.
const GRACE: Duration = Duration::from_secs(5);
/// Sessions that hosts name in the environment of the servers they start.
const SESSIONS: [&str; 2] = ["CLAUDE_CODE_SESSION_ID", "GROK_SESSION_ID"];
/// Programs that start a server and are not one, and words they take.
const LAUNCHERS: [&str; 16] = [
    "npx", "bunx", "pnpx", "uvx", "uv", "node", "bun", "deno", "python", "python3", "env", "docker", "run",
    "exec", "tool", "sh",
];

/// Put an MCP server behind the ledger: a tool is called once, whoever retries.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct McpArgs {
    #[command(subcommand)]
    command: Option<McpCommand>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
enum McpCommand {
    /// Write a policy with one rule for each tool of the server, to edit
    Init {
        /// Where to
        #[arg(default_value = "onceward.toml")]
        file: PathBuf,
        #[command(flatten)]
        rules: RuleArgs,
        #[command(flatten)]
        dry: DryRunArgs,
        /// The server's command, after `--`
        #[arg(last = true, required = true, value_name = "SERVER")]
        server: Vec<OsString>,
    },
}

#[derive(Debug, Args)]
struct RuleArgs {
    /// A short name for the server: operations are called NAME/tool [default: made of its command]
    #[arg(long = "server", value_name = "NAME")]
    name: Option<String>,
    /// Who names an operation when the caller does not: auto, strict or keyed [default: auto]
    #[arg(long, value_name = "POLICY")]
    keys: Option<Keys>,
    /// Believe only the policy, not what the server says about its tools
    #[arg(long)]
    distrust_annotations: bool,
}

#[derive(Debug, Args)]
struct ServeArgs {
    #[command(flatten)]
    rules: RuleArgs,
    /// Who shares keys: a session, a run, a tenant [default: what the host tells, else this connection]
    #[arg(long, visible_alias = "session", env = "ONCE_SCOPE", value_name = "SCOPE")]
    scope: Option<String>,
    /// Show the model an optional `idempotency_key` and `dry_run` in each tool that changes something
    #[arg(long)]
    expose_key: bool,
    /// Run nothing that changes something: each call is told what would happen
    #[arg(long)]
    dry_run: bool,
    /// Print each tool of the server, its class and why, and end
    #[arg(long)]
    explain: bool,
    /// How long a call waits for the same one of another caller, and for a lock
    #[arg(long, default_value = "10m", value_parser = cli::span, value_name = "TIME")]
    wait: u64,
    /// After how long a caller may have given up: the same call after such an answer is a retry for a while
    #[arg(long, default_value = "4s", value_parser = cli::span, value_name = "TIME")]
    slow: u64,
    /// How long that while is
    #[arg(long, default_value = "120s", value_parser = cli::span, value_name = "TIME")]
    window: u64,
    /// How long calls may go on when the client is gone
    #[arg(long, default_value = "30s", value_parser = cli::span, value_name = "TIME")]
    drain: u64,
    /// The server's command, after `--`
    #[arg(last = true, value_name = "SERVER")]
    server: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Keys {
    /// The same call is a retry until its answer was delivered; after that it is wanted again
    Auto,
    /// The same call is the same operation within the scope
    Strict,
    /// Only a given key makes two calls one operation
    Keyed,
}

impl RuleArgs {
    fn keys(&self) -> Option<KeyPolicy> {
        self.keys.map(|keys| match keys {
            Keys::Auto => KeyPolicy::Auto,
            Keys::Strict => KeyPolicy::Strict,
            Keys::Keyed => KeyPolicy::Keyed,
        })
    }

    fn trust(&self) -> Trust {
        if self.distrust_annotations { Trust::PolicyOnly } else { Trust::Annotations }
    }

    fn name(&self, server: &[OsString]) -> String {
        self.name.clone().unwrap_or_else(|| server_name(server))
    }
}

pub(super) fn run(context: &Context, args: &McpArgs) -> Ended {
    match &args.command {
        Some(McpCommand::Init { file, rules, dry, server }) => init(context, file, rules, *dry, server),
        None if args.serve.server.is_empty() => {
            Err(CommandError::invalid("there is no server to stand before; give its command after `--`"))
        }
        None if args.serve.explain => explain(context, &args.serve),
        None => serve(context, &args.serve),
    }
}

fn serve(context: &Context, args: &ServeArgs) -> Ended {
    let ledger = Ledger::new(context.store(Missing::Make)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .map_err(|error| CommandError::Outside(format!("cannot start the runtime: {error}")))?;
    let (client_in, client_out) = own_streams()?;
    let options = options(context, args);
    let (mut child, to_server, from_server) = start(&args.server)?;
    let streams = Streams { client: Box::new(client_out), server: Box::new(to_server) };
    let proxy = Proxy::new(ledger, options, streams, runtime.handle().clone());
    watch_signals(&proxy, &child, args.drain)?;
    let from_client = Arc::clone(&proxy);
    std::thread::spawn(move || from_client.pump_client(client_in));
    proxy.pump_server(from_server);
    let status = ended(&mut child)?;
    proxy.server_gone(&format!("the server ended ({status}) before it answered"));
    // What the runtime still holds is written down already, or in doubt as it should be.
    runtime.shutdown_background();
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn options(context: &Context, args: &ServeArgs) -> Options {
    let session = || SESSIONS.iter().find_map(|name| std::env::var(name).ok());
    let scope = match (&args.scope, session().filter(|session| !session.is_empty())) {
        (Some(scope), _) => HostScope::Chosen(scope.clone()),
        (None, Some(session)) => HostScope::Session(session),
        (None, None) => {
            answer::talk(
                "once mcp: no scope was given, so it is this connection: unless the client names its conversation, \
                 nothing is remembered across restarts (--scope or ONCE_SCOPE names one)",
            );
            HostScope::connection()
        }
    };
    let identity = match &args.rules.name {
        Some(name) => name.clone(),
        None => identity(&args.server),
    };
    Options {
        server: args.rules.name(&args.server),
        identity,
        policy: context.policy.clone(),
        scope,
        keys: args.rules.keys(),
        trust: args.rules.trust(),
        exposure: if args.expose_key { Exposure::Arguments } else { Exposure::Hidden },
        dry_run: args.dry_run,
        slow_ms: args.slow,
        window_ms: args.window,
        wait_ms: args.wait,
        drain_ms: args.drain,
        notice: Box::new(|text| answer::talk(&format!("once mcp: {text}"))),
    }
}

/// Standard input and output without buffers of anybody else's.
fn own_streams() -> Result<(File, File), CommandError> {
    let own = |stream: std::io::Result<std::os::fd::OwnedFd>| {
        let failed = |error| CommandError::Outside(format!("cannot use the standard streams: {error}"));
        stream.map(File::from).map_err(failed)
    };
    let client_in = own(std::io::stdin().as_fd().try_clone_to_owned())?;
    Ok((client_in, own(std::io::stdout().as_fd().try_clone_to_owned())?))
}

fn start(server: &[OsString]) -> Result<(Child, ChildStdin, ChildStdout), CommandError> {
    let Some((program, arguments)) = server.split_first() else {
        return Err(CommandError::invalid("there is no server to start; give its command after `--`"));
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let not_started =
        |why: String| CommandError::Outside(format!("cannot start {}: {why}", program.to_string_lossy()));
    let mut child = command.spawn().map_err(|error| not_started(error.to_string()))?;
    match (child.stdin.take(), child.stdout.take()) {
        (Some(to), Some(from)) => Ok((child, to, from)),
        (_, _) => Err(not_started("it has no streams".to_owned())),
    }
}

/// A signal ends the server, but not before the calls under way have ended: they are what it is all about.
fn watch_signals(proxy: &Arc<Proxy>, child: &Child, drain_ms: u64) -> Result<(), CommandError> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| CommandError::Outside(format!("cannot watch for signals: {error}")))?;
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
    let proxy = Arc::clone(proxy);
    std::thread::spawn(move || {
        for signal in signals.forever() {
            proxy.wait_idle(drain_ms);
            let signal = Signal::try_from(signal).unwrap_or(Signal::SIGTERM);
            match kill(pid, signal) {
                // It may be gone already.
                Ok(()) | Err(_) => {}
            }
        }
    });
    Ok(())
}

/// How the server ended. One that lives on without a voice is stopped.
fn ended(child: &mut Child) -> Result<ExitStatus, CommandError> {
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

fn explained(
    context: &Context,
    rules: &RuleArgs,
    server: &[OsString],
) -> Result<Vec<Explained>, CommandError> {
    let (mut child, to_server, from_server) = start(server)?;
    let policy = context.policy.clone();
    let name = rules.name(server);
    let tools = onceward_mcp::explain(policy, &name, rules.keys(), rules.trust(), to_server, from_server);
    ended(&mut child)?;
    Ok(tools?)
}

fn explain(context: &Context, args: &ServeArgs) -> Ended {
    let tools = explained(context, &args.rules, &args.server)?;
    answer::success(context.global.json, "noop", &tools, || {
        let rows: Vec<_> = tools
            .iter()
            .map(|tool| {
                let plain = |text: String| (text, anstyle::Style::new());
                let keys = format!("{:?}", tool.keys).to_lowercase();
                vec![
                    (tool.tool.clone(), BOLD),
                    plain(tool.class.to_string()),
                    plain(keys),
                    plain(tool.why.to_owned()),
                ]
            })
            .collect();
        answer::table(&["TOOL", "CLASS", "KEYS", "WHY"], &rows)
    });
    Ok(ExitCode::SUCCESS)
}

fn init(context: &Context, file: &Path, rules: &RuleArgs, dry: DryRunArgs, server: &[OsString]) -> Ended {
    let tools = explained(context, rules, server)?;
    let text = onceward_mcp::policy_text(&rules.name(server), &tools);
    let json = context.global.json;
    if dry.dry_run {
        answer::success(json, "would_create", &tools, || text);
        return Ok(ExitCode::SUCCESS);
    }
    // A policy that somebody has edited is not overwritten.
    let made = File::options().write(true).create_new(true).open(file);
    made.and_then(|mut out| out.write_all(text.as_bytes()))
        .map_err(|error| CommandError::invalid(format!("cannot write {}: {error}", file.display())))?;
    answer::success(json, "created", &tools, || {
        format!("wrote {} with {} tools", styled(BOLD, file.display()), tools.len())
    });
    Ok(ExitCode::SUCCESS)
}

/// What tells one command from another, without keeping what it says.
fn identity(server: &[OsString]) -> String {
    let mut hash = Sha256::new();
    for word in server {
        hash.update(word.as_encoded_bytes());
        hash.update([0]);
    }
    BASE32_NOPAD.encode(&hash.finalize()[..10]).to_lowercase()
}

/// A short name made of a command: `npx -y @modelcontextprotocol/server-filesystem@1 DIR` is `filesystem`.
fn server_name(server: &[OsString]) -> String {
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
