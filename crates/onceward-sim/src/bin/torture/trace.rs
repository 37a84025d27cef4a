//! Kills and errors at system calls, with strace.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::Trouble;

/// The offset in the `…-live` file at which the dispatch notes begin.
const NOTES_AT: u64 = 4_096;

/// Which processes the tracer follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    /// Only the main thread of the wrapper; its command keeps running when it is killed.
    MainThread,
    /// All threads, and the command. strace counts the calls of each separately.
    All,
}

/// strace with these injections and a log; the program to run must be added.
pub(crate) fn strace(log: &Path, follow: Follow, inject: Option<&str>) -> Command {
    let mut command = Command::new("strace");
    command.args(["-q", "-y", "-o"]).arg(log);
    if follow == Follow::All {
        command.arg("-f");
    }
    if let Some(inject) = inject {
        command.arg("-e").arg(format!("inject={inject}"));
    }
    command
}

/// Whether the attempt had noted its dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dispatched {
    No,
    /// The process was killed during the write of the note.
    Perhaps,
    Yes,
}

/// The parsed log of strace.
pub(crate) struct Log {
    lines: Vec<Line>,
}

struct Line {
    /// Empty if only one thread is traced.
    thread: String,
    text: String,
}

impl Log {
    pub(crate) fn read(file: &Path, follow: Follow) -> Result<Self, Trouble> {
        let bytes = std::fs::read(file).map_err(|error| format!("strace wrote no log: {error}"))?;
        let text = String::from_utf8_lossy(&bytes);
        let split = |line: &str| match follow {
            Follow::MainThread => (String::new(), line.to_owned()),
            Follow::All => {
                let (thread, rest) = line.split_once(' ').unwrap_or((line, ""));
                (thread.to_owned(), rest.trim_start().to_owned())
            }
        };
        let lines = text.lines().map(split).map(|(thread, text)| Line { thread, text }).collect();
        Ok(Self { lines })
    }

    /// Whether a process was killed.
    pub(crate) fn killed(&self) -> bool {
        self.lines.iter().any(|line| line.text.starts_with("+++ killed by SIGKILL"))
    }

    /// Whether an error was injected.
    pub(crate) fn injected(&self) -> bool {
        self.lines.iter().any(|line| line.text.contains("(INJECTED)"))
    }

    /// The first note says "not yet", the second one "now".
    pub(crate) fn dispatched(&self) -> Dispatched {
        let notes: Vec<&Line> = self.lines.iter().filter(|line| is_note(&line.text)).collect();
        match notes.get(1) {
            None => Dispatched::No,
            Some(line) if line.text.ends_with("= ?") || line.text.contains("<unfinished") => {
                Dispatched::Perhaps
            }
            Some(_) => Dispatched::Yes,
        }
    }

    /// How often each system call was made, by the thread that made it most often.
    pub(crate) fn calls(&self) -> BTreeMap<String, u64> {
        let mut by_thread: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for line in &self.lines {
            if let Some(call) = call_of(&line.text) {
                *by_thread.entry((call, &line.thread)).or_default() += 1;
            }
        }
        let mut most = BTreeMap::new();
        for ((call, _), count) in by_thread {
            let entry = most.entry(call.to_owned()).or_insert(0);
            *entry = count.max(*entry);
        }
        most
    }

    /// Which `pwrite64` of the main thread is the dispatch note, counted from 1.
    pub(crate) fn dispatch_note(&self) -> Option<usize> {
        let writes = self.lines.iter().filter(|line| line.text.starts_with("pwrite64("));
        writes.enumerate().filter(|(_, line)| is_note(&line.text)).nth(1).map(|(at, _)| at + 1)
    }
}

/// Whether the line is a write of eight bytes at the offset of a note.
fn is_note(line: &str) -> bool {
    let Some((_, rest)) = line.split_once("-live>, ").filter(|_| line.starts_with("pwrite64(")) else {
        return false;
    };
    let Some((_, offset)) = rest.rsplit_once(", 8, ") else {
        return false;
    };
    let digits: String = offset.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().is_ok_and(|offset: u64| offset >= NOTES_AT)
}

fn call_of(line: &str) -> Option<&str> {
    let (call, _) = line.split_once('(')?;
    let whole = !call.is_empty() && call.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    whole.then_some(call)
}
