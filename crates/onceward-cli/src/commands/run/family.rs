//! The processes that a command has started, so that a time limit ends all of them.

use std::cell::RefCell;
use std::collections::HashSet;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The variable that lists the operations of a process and their ledgers, the outermost first.
const PROCESS_OF: &str = "ONCE_PROCESS_OF";

/// The variable for the processes of an operation, which may be part of others.
pub(super) fn process_of(operation: &str) -> (&'static str, String) {
    let outer = std::env::var(PROCESS_OF).unwrap_or_default();
    (PROCESS_OF, format!("{outer} {operation}").trim_start().to_owned())
}

/// Makes this process the new parent of descendants whose own parent ends, so that they can still be found.
pub(super) fn adopt_orphans() {
    match nix::sys::prctl::set_child_subreaper(true) {
        // Without it, a process that left its parent is not found, and still holds the attempt's lock.
        Ok(()) | Err(_) => {}
    }
}

/// A command and every process that it has started.
pub(super) struct Family {
    command: Pid,
    /// A child of this process that does not belong to the command.
    stranger: Option<Pid>,
    /// When the command was started, in the kernel's units. Older processes do not belong to it.
    since: u64,
    /// Processes that were already asked to end. Some treat a second request as an order to stop at once.
    asked: RefCell<HashSet<Pid>>,
}

impl Family {
    /// The family of a command that has not been waited for yet. `stranger` is another child of this process.
    pub(super) fn of(command: Pid, stranger: Option<Pid>) -> Self {
        let since = Process::read(command.as_raw()).map_or(0, |process| process.started);
        Self { command, stranger, since, asked: RefCell::default() }
    }

    /// Asks every member to end, once.
    pub(super) fn ask_to_end(&self) {
        for pid in self.members() {
            if self.asked.borrow_mut().insert(pid) {
                send(pid, Signal::SIGTERM);
            }
        }
    }

    /// Ends every member.
    pub(super) fn kill(&self) {
        for pid in self.members() {
            send(pid, Signal::SIGKILL);
        }
    }

    /// Whether any member but the command itself still runs.
    pub(super) fn any_left(&self) -> bool {
        self.members().iter().any(|pid| *pid != self.command)
    }

    /// The command, and every living process that descends from it or was left behind by it.
    fn members(&self) -> Vec<Pid> {
        let processes: Vec<Process> = std::fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(|entry| Process::read(entry.ok()?.file_name().to_str()?.parse().ok()?))
            .filter(|process| process.lives && process.started >= self.since)
            .collect();
        let mut found = vec![i32::try_from(std::process::id()).unwrap_or_default()];
        let mut next = 0;
        while let Some(parent) = found.get(next).copied() {
            found.extend(
                processes.iter().filter(|process| process.parent == parent).map(|process| process.id),
            );
            next += 1;
        }
        // The command itself is listed even without /proc: until it is reaped, its id is its own.
        let others = found.into_iter().skip(1).map(Pid::from_raw);
        let others = others.filter(|pid| *pid != self.command && Some(*pid) != self.stranger);
        std::iter::once(self.command).chain(others).collect()
    }
}

/// A process of an attempt of this operation that still runs, also if its parent has ended. A process may close the
/// descriptors that it inherited, and with them the attempt's lock, but it keeps its environment.
pub(in crate::commands) fn still_running(operation: &str) -> Option<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let processes = std::fs::read_dir("/proc").into_iter().flatten();
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_of = |pid: &i32| {
        let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let inside = variables
            .split(|byte| *byte == 0)
            .filter_map(|variable| variable.strip_prefix(PROCESS_OF.as_bytes())?.strip_prefix(b"="));
        let mut operations = inside.flat_map(|inside| inside.split(|byte| *byte == b' '));
        operations.any(|inside| inside == operation.as_bytes())
    };
    let mut members = pids.filter(|pid| *pid != own && is_of(pid));
    members.find(|pid| Process::read(*pid).is_some_and(|process| process.lives))
}

fn send(pid: Pid, signal: Signal) {
    match kill(pid, signal) {
        // One that has just ended needs no signal.
        Ok(()) | Err(_) => {}
    }
}

/// What the kernel reports about a process.
struct Process {
    id: i32,
    parent: i32,
    /// When it was started, in ticks since the machine was.
    started: u64,
    /// It is not a zombie.
    lives: bool,
}

impl Process {
    fn read(id: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The program's name is in parentheses, and may contain any character.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let parent = fields.get(1)?.parse().ok()?;
        let started = fields.get(19)?.parse().ok()?;
        Some(Self { id, parent, started, lives: !matches!(*fields.first()?, "Z" | "X") })
    }
}
