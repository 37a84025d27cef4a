//! Time is an argument: only the stores and what moves bytes read a clock.

use std::collections::BTreeMap;

use super::modules::targets;
use super::{counted, none};

/// Crates that may read clocks: back ends, what tests with real processes and servers, and the listeners and clients of
/// `onceward-http`, which are to be a crate of their own.
const MAY: [&str; 5] =
    ["onceward-store", "folder-store", "onceward-testkit", "onceward-sim", "onceward-http"];

/// The files that read a clock: how often they name it, and why.
const LEFT: &[(&str, usize, &str)] = &[
    ("crates/onceward-clap/src/builtin/mcp.rs", 1, "how long a call took, for its answer"),
    ("crates/onceward-clap/src/output.rs", 1, "the same"),
    ("crates/onceward-clap/src/supervisor.rs", 5, "the time limit of the work in this process"),
    ("crates/onceward-cli/src/commands/ask.rs", 2, "the time limit of a probe's process"),
    ("crates/onceward-cli/src/commands/demo/shop.rs", 2, "how long the demo waits for its own process"),
    ("crates/onceward-cli/src/commands/inbox/remote.rs", 1, "the time limit of a request"),
    ("crates/onceward-cli/src/commands/inbox/trial.rs", 4, "signs a sample as its vendor would, now"),
    (
        "crates/onceward-cli/src/commands/mcp/stdio.rs",
        3,
        "how long a server lived, and how long it may take to end",
    ),
    (
        "crates/onceward-cli/src/commands/mcp/undo.rs",
        2,
        "the time limit of a compensation and of its server's end",
    ),
    ("crates/onceward-cli/src/commands/run/child.rs", 9, "the time limit of a command, and its grace period"),
    ("crates/onceward-cli/src/commands/run/keeper.rs", 5, "renews the lease of a process that was killed"),
    ("crates/onceward-cli/src/commands/run/outlet.rs", 2, "how long a reader may block the output"),
    ("crates/onceward-cli/src/commands/top.rs", 2, "how often the screen is drawn"),
    ("crates/onceward-cli/src/commands/undo.rs", 2, "how long a probe is repeated in this process"),
    ("crates/onceward-mcp/src/transport/http/serve.rs", 3, "a listener: pauses and grace of connections"),
    ("crates/onceward-mcp/src/transport/undo.rs", 2, "the time limit of a server's answer"),
    ("crates/onceward-python/src/async_call.rs", 3, "how long the drop of a coroutine may take"),
    ("crates/onceward-python/src/attempt.rs", 2, "how often the ledger is asked for a stop"),
    ("crates/onceward-python/src/drive.rs", 2, "how often the interpreter is asked for signals"),
    ("crates/onceward-python/src/run.rs", 1, "how long signals wait for the last write"),
];

/// Whether a path is a clock of this machine, or waits for one.
fn is_clock(path: &[String]) -> bool {
    let ends = |words: [&str; 2]| path.ends_with(&words.map(str::to_owned));
    let is_tokio = path.starts_with(&["tokio", "time"].map(str::to_owned));
    is_tokio || ends(["SystemTime", "now"]) || ends(["Instant", "now"]) || ends(["time", "clock_gettime"])
}

#[test]
fn only_what_has_a_reason_reads_a_clock() {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for target in targets().iter().filter(|target| !MAY.contains(&target.package.as_str())) {
        for (file, path) in target.paths().filter(|(_, path)| is_clock(path)) {
            found.entry(file.to_owned()).or_default().push(path.join("::"));
        }
    }
    none(counted(&found, LEFT), "time is an argument: ask the ledger's clock");
}
