//! `once mcp`: a proxy that guards an MCP server.

pub(crate) mod http;
mod stdio;
mod undo;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use data_encoding::BASE32_NOPAD;
use onceward::text::one_line;
use onceward::{KeyPolicy, OnToolError, Surface};
use onceward_mcp::{Asking, Explained, Exposure, Guess, HostScope, Options, Ruling, Slow, Trust};
use sha2::{Digest, Sha256};

use crate::answer;
use crate::cli::{self, DryRunArgs, HeaderArgs};
use crate::context::Context;
use crate::exit::{CommandError, Ended};
use crate::private::create_private;
use crate::style::{BOLD, styled};

pub(super) use undo::ToolServer;

/// A client may have given up on an answer that took longer than this.
const SLOW_MS: u64 = 4_000;

/// Guard an MCP server: retried tool calls do not run again
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
        /// Destination file
        #[arg(default_value = "onceward.toml")]
        file: PathBuf,
        /// Also classify tools without annotations by their names
        #[arg(long)]
        guess: bool,
        #[command(flatten)]
        rules: RuleArgs,
        #[command(flatten)]
        dry: DryRunArgs,
        #[command(flatten)]
        server: InitServerArgs,
    },
}

#[derive(Debug, Args)]
struct RuleArgs {
    /// Short name of the server; operations are called NAME/tool [default: derived from its command]
    #[arg(long = "server", value_name = "NAME")]
    name: Option<String>,
    /// Whether the same call without a key is a retry or a new action [default: auto]
    #[arg(long, value_name = "POLICY")]
    keys: Option<Keys>,
    /// Ignore the server's annotations of its tools; use only the policy
    #[arg(long)]
    distrust_annotations: bool,
    #[command(flatten)]
    headers: HeaderArgs,
}

#[derive(Debug, Args)]
struct ServeArgs {
    #[command(flatten)]
    rules: RuleArgs,
    /// Namespace for keys, such as a session, a run or a tenant [default: the host's conversation, otherwise this
    /// connection]
    #[arg(long, visible_alias = "session", env = "ONCE_SCOPE", value_name = "SCOPE")]
    scope: Option<String>,
    /// Add the optional arguments `idempotency_key` and `dry_run` to each tool that changes something
    #[arg(long)]
    expose_key: bool,
    /// Run no call that changes something; answer what would happen instead
    #[arg(long)]
    dry_run: bool,
    /// List each tool of the server with its class and the reason, and exit
    #[arg(long)]
    explain: bool,
    /// Whether a tool without annotations may run again if its name says that it only reads
    #[arg(long, default_value = "yes", value_name = "yes|no")]
    guess: YesNo,
    /// Meaning of a result with isError, unless the policy sets it for the tool [default: in_doubt]
    #[arg(long, value_name = "MEANING")]
    on_tool_error: Option<ToolError>,
    /// How long a call waits for another caller's identical call, and for a lock
    #[arg(long, default_value = "10m", value_parser = cli::span, value_name = "TIME")]
    wait: u64,
    /// Treat a repeated call as a retry if the first answer took longer than this, for clients that give up without
    /// a cancel [default: 4s, only for clients known to do so]
    #[arg(long, value_parser = cli::span, value_name = "TIME")]
    slow: Option<u64>,
    /// Pass the ledger's URL with its password to the server, in ONCE_LEDGER
    #[arg(long, conflicts_with = "http")]
    pass_ledger: bool,
    /// Do not ask the human about operations in doubt, even if the client supports it
    #[arg(long)]
    no_ask: bool,
    /// How long calls may continue after the client has disconnected
    #[arg(long, default_value = "30s", value_parser = cli::span, value_name = "TIME")]
    drain: u64,
    /// Address to listen on, with --http; port 0 takes a free port
    #[arg(long, default_value = "127.0.0.1:6280", value_name = "ADDR", requires = "http")]
    listen: SocketAddr,
    /// Token that clients must send as `Authorization: Bearer TOKEN` or `X-Once-Token`; required if --listen is not
    /// a loopback address
    #[arg(long, env = "ONCE_MCP_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<String>,
    /// Treat tokens with the same issuer and subject as one caller, if the server accepts them; only for a server
    /// that verifies its tokens
    #[arg(long, requires = "http")]
    trust_subject: bool,
    /// Header that does not identify the caller and may differ between a call and its retry; may be repeated
    #[arg(long = "ignore-header", value_name = "NAME", requires = "http")]
    ignored_headers: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct ServerArgs {
    /// URL of a server over streamable HTTP, instead of a command
    #[arg(long, value_name = "URL")]
    http: Option<String>,
    /// The server's command; put it after `--` if its words look like options of `once mcp`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "SERVER")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct InitServerArgs {
    /// URL of a server over streamable HTTP, instead of a command
    #[arg(long, value_name = "URL")]
    http: Option<String>,
    /// The server's command, after `--`
    #[arg(last = true, value_name = "SERVER")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum YesNo {
    Yes,
    No,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum ToolError {
    /// It may have happened
    InDoubt,
    /// Nothing happened: tools of this server do nothing when they answer with an error
    NoEffect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Keys {
    /// A retry until its answer has been delivered; after that, a new action
    Auto,
    /// Always a retry within the scope
    Strict,
    /// A new action, unless the key is the same
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

    fn name(&self, made: &str) -> String {
        self.name.clone().unwrap_or_else(|| made.to_owned())
    }
}

pub(super) fn run(context: &Context, args: &McpArgs) -> Ended {
    // The policy decides what may run twice and may name tools to call, so say which one is used.
    if let Some(file) = &context.policy_file {
        answer::talk(&format!("once mcp: the policy is {}", one_line(&file.display().to_string())));
    }
    if let Some(McpCommand::Init { file, guess, rules, dry, server }) = &args.command {
        return init(context, file, rules, *guess, *dry, &Server::of(server.http.as_ref(), &server.command)?);
    }
    let serve = &args.serve;
    match Server::of(serve.server.http.as_ref(), &serve.server.command)? {
        server if serve.explain => explain(context, serve, &server),
        Server::Command(command) => stdio::serve(context, serve, &command),
        Server::Url(url) => http::serve(context, serve, &url),
    }
}

/// Which server.
enum Server {
    Command(Vec<OsString>),
    Url(String),
}

impl Server {
    fn of(http: Option<&String>, command: &[OsString]) -> Result<Self, CommandError> {
        match (http, command) {
            (Some(url), []) => Ok(Self::Url(url.clone())),
            (None, []) => Err(CommandError::invalid(
                "no server given; give its command after `--`, or its address with --http",
            )),
            (None, command) => Ok(Self::Command(command.to_vec())),
            (Some(_), _) => {
                Err(CommandError::invalid("two servers given; give a command after `--` or --http, not both"))
            }
        }
    }
}

/// The server's tools and its name.
fn explained(
    context: &Context,
    rules: &RuleArgs,
    guess: Guess,
    server: &Server,
) -> Result<(String, Vec<Explained>), CommandError> {
    let name = match server {
        Server::Command(command) => rules.name(&stdio::server_name(command)),
        Server::Url(url) => rules.name(&http::server_name(url)),
    };
    let mut ruling = Ruling::new(context.policy.clone(), name.clone());
    (ruling.keys, ruling.trust, ruling.guess) = (rules.keys(), rules.trust(), guess);
    let tools = match server {
        Server::Command(command) => stdio::explained(context, ruling, command),
        Server::Url(url) => http::explained(ruling, rules, url),
    };
    Ok((name, tools?))
}

/// The proxy's options, for both transports.
fn options(context: &Context, args: &ServeArgs, name: String, identity: String, scope: HostScope) -> Options {
    Options {
        server: args.rules.name(&name),
        // A given name means that it is the same server, wherever it runs.
        identity: args.rules.name.clone().unwrap_or(identity),
        policy: context.policy.clone(),
        scope,
        keys: args.rules.keys(),
        trust: args.rules.trust(),
        guess: args.guess(),
        on_tool_error: args.on_tool_error.map(|meaning| match meaning {
            ToolError::InDoubt => OnToolError::InDoubt,
            ToolError::NoEffect => OnToolError::NoEffect,
        }),
        program: program(context),
        exposure: if args.expose_key { Exposure::Arguments } else { Exposure::Hidden },
        dry_run: args.dry_run,
        slow: Slow { ms: args.slow.unwrap_or(SLOW_MS), every_client: args.slow.is_some() },
        wait_ms: args.wait,
        drain_ms: args.drain,
        asking: if args.no_ask { Asking::Nobody } else { Asking::Human },
        // A notice may name tools of the server's, and is one line of the log.
        notice: Box::new(|text| answer::talk(&format!("once mcp: {}", one_line(text)))),
    }
}

/// The command line with which a person reaches the same ledger.
fn program(context: &Context) -> String {
    match context.surface() {
        Surface::Shell { program, options, .. } => [vec![program], options].concat().join(" "),
        Surface::Python | Surface::Http | Surface::McpAgent | Surface::McpPerson { .. } => "once".to_owned(),
    }
}

impl ServeArgs {
    fn guess(&self) -> Guess {
        match self.guess {
            YesNo::Yes => Guess::Reads,
            YesNo::No => Guess::Nothing,
        }
    }
}

fn explain(context: &Context, args: &ServeArgs, server: &Server) -> Ended {
    let (_, tools) = explained(context, &args.rules, args.guess(), server)?;
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
                    plain(tool.why.clone()),
                ]
            })
            .collect();
        answer::table(&["TOOL", "CLASS", "KEYS", "WHY"], &rows)
    });
    Ok(ExitCode::SUCCESS)
}

fn init(
    context: &Context,
    file: &Path,
    rules: &RuleArgs,
    guess: bool,
    dry: DryRunArgs,
    server: &Server,
) -> Ended {
    let (name, tools) = explained(context, rules, Guess::Reads, server)?;
    let text = onceward_mcp::policy_text(&name, &tools, guess);
    let json = context.global.json;
    if dry.dry_run {
        answer::success(json, "would_create", &tools, || text);
        return Ok(ExitCode::SUCCESS);
    }
    // Never overwrite an edited policy.
    create_private(file)
        .and_then(|mut out| out.write_all(text.as_bytes()))
        .map_err(|error| CommandError::invalid(format!("cannot write {}: {error}", file.display())))?;
    answer::success(json, "created", &tools, || {
        format!("wrote {} with {} tools", styled(BOLD, file.display()), tools.len())
    });
    Ok(ExitCode::SUCCESS)
}

/// The identity of a server's command. A file that it names in the current folder counts with its whole path: the same
/// words in another folder are another server.
fn command_identity(command: &[OsString]) -> String {
    let words: Vec<OsString> =
        command.iter().enumerate().map(|(index, word)| identifying(word, index == 0)).collect();
    identity(&words)
}

/// The endings of scripts, which are also run without a permission to execute them.
const SCRIPTS: [&str; 12] = ["py", "js", "mjs", "cjs", "ts", "mts", "rb", "sh", "php", "pl", "jar", "lua"];

/// A word of a command, or the canonical path of the program or script that it names relative to the current folder. A
/// program without a folder is looked up in PATH. Other files do not count: a server may create them when it runs.
fn identifying(word: &OsStr, is_program: bool) -> OsString {
    let path = Path::new(word);
    let is_looked_up = is_program && !word.as_encoded_bytes().contains(&b'/');
    if path.is_absolute() || is_looked_up || !is_code(path) {
        return word.to_owned();
    }
    std::fs::canonicalize(path).map_or_else(|_| word.to_owned(), OsString::from)
}

fn is_code(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let Ok(found) = std::fs::metadata(path) else { return false };
    let is_script = path.extension().is_some_and(|ending| SCRIPTS.iter().any(|script| ending == *script));
    found.is_file() && (is_script || found.permissions().mode() & 0o111 != 0)
}

/// A hash that identifies a command or address without storing it.
fn identity(server: &[OsString]) -> String {
    let mut hash = Sha256::new();
    for word in server {
        hash.update(word.as_encoded_bytes());
        hash.update([0]);
    }
    BASE32_NOPAD.encode(&hash.finalize()[..10]).to_lowercase()
}
