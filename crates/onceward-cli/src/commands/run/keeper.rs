//! The lease keeper, for a command that outlives `once run` on a back end with leases.
//!
//! On one machine the command holds the operation's lock itself. On a server the lease would lapse while the command
//! still runs, and its operation would be in doubt too early: a probe's *no* could let a second one run beside it. So
//! `once run` starts a small keeper first. The command inherits the end of a pipe that the keeper reads. While `once
//! run` is stopped (SIGSTOP, Ctrl-Z), the keeper renews the lease. When `once run` is killed, the keeper renews it
//! until the command and all that it started are gone, and then writes the doubt down.

use std::io::{PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};
use onceward::{Attempt, Blocking, Ledger, OperationId};
use onceward_store::{IfMissing, StoreUrl};
use serde::{Deserialize, Serialize};

use crate::cli::IfKilled;
use crate::exit::{CommandError, Ended};

/// The name of the hidden keeper command.
pub(crate) const COMMAND: &str = "__keep-lease";
/// How often the keeper checks whether `once run` is alive.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time for a command to exit after SIGTERM, before SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// What `once run` sends when it has recorded the end itself.
const OVER: &str = ".";

/// The keeper's job, sent to its standard input because a URL may contain a password.
#[derive(Serialize, Deserialize)]
struct Task {
    ledger: String,
    operation: OperationId,
    attempt: u32,
    lease_ms: u64,
    parent: i32,
    if_killed: IfKilled,
}

/// The keeper, as `once run` sees it.
pub(super) struct Keeper {
    pipe: PipeWriter,
    process: Child,
}

impl Keeper {
    /// Starts the keeper of an attempt.
    pub(super) fn start(
        ledger: String,
        attempt: &Attempt,
        lease_ms: u64,
        if_killed: IfKilled,
    ) -> std::io::Result<Self> {
        let (reader, mut pipe) = std::io::pipe()?;
        let process = Command::new(std::env::current_exe()?)
            .arg(COMMAND)
            .stdin(reader)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Signals from the terminal are not for the keeper.
            .process_group(0)
            .spawn()?;
        let task = Task {
            ledger,
            operation: attempt.operation().clone(),
            attempt: attempt.number(),
            lease_ms,
            parent: i32::try_from(std::process::id()).unwrap_or_default(),
            if_killed,
        };
        let mut line = serde_json::to_vec(&task)?;
        line.push(b'\n');
        pipe.write_all(&line)?;
        Ok(Self { pipe, process })
    }

    /// Lets the command that is started inside inherit the pipe, which shows that the command is alive.
    pub(super) fn lend<T>(&self, start: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
        fcntl(&self.pipe, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let started = start();
        fcntl(&self.pipe, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        started
    }

    /// The keeper's process id, which does not belong to the command.
    pub(super) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.process.id()).unwrap_or(i32::MAX))
    }

    /// Stops the keeper, because the end is known here.
    pub(super) fn dismiss(mut self) {
        drop(self.pipe.write_all(format!("{OVER}\n").as_bytes()));
        drop(self.pipe);
        drop(self.process.wait());
    }
}

/// Events for the keeper.
enum Heard {
    /// `once run` has recorded the end itself.
    Over,
    /// `once run`, the command and all processes that it started are gone.
    AllGone,
}

/// Runs the keeper.
pub(crate) fn run() -> Ended {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|error| CommandError::invalid(error.to_string()))?;
    let task: Task = serde_json::from_str(&line)
        .map_err(|_| CommandError::invalid("only `once run` starts this command"))?;
    let (hear, heard) = mpsc::channel();
    std::thread::spawn(move || listen(&hear));
    let mut ledger = None;
    while getppid().as_raw() == task.parent {
        match heard.recv_timeout(POLL_INTERVAL) {
            Ok(Heard::Over | Heard::AllGone) | Err(RecvTimeoutError::Disconnected) => {
                return Ok(ExitCode::SUCCESS);
            }
            // If it fails now, the next look tries again.
            Err(RecvTimeoutError::Timeout) if is_stopped(task.parent) => drop(renew(&task, &mut ledger)),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    drop(ledger);
    keep(&task, &heard)
}

/// Whether a process was stopped by a signal, and cannot renew its lease itself.
fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program is in parentheses and may hold anything; the state follows.
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| matches!(rest.trim_start().as_bytes().first(), Some(b'T' | b't')))
}

/// Renews the lease once, on a ledger that is opened the first time.
fn renew(task: &Task, opened: &mut Option<Blocking>) -> Result<(), CommandError> {
    let ledger = match opened {
        Some(ledger) => ledger,
        None => opened.insert(open(task)?),
    };
    let (record, _) = ledger.find(&task.operation)?;
    if let Some(lease) = ledger.ledger().attempts().lease_of(&record, task.attempt, task.lease_ms) {
        ledger.wait_for(lease.renew());
    }
    Ok(())
}

fn open(task: &Task) -> Result<Blocking, CommandError> {
    let store = StoreUrl::parse(&task.ledger)?.open(IfMissing::Fail).map_err(onceward::Error::from)?;
    Ok(Ledger::new(store).blocking())
}

fn listen(hear: &Sender<Heard>) {
    let mut line = String::new();
    let heard = match std::io::stdin().read_line(&mut line) {
        Ok(0) | Err(_) => Heard::AllGone,
        Ok(_) => Heard::Over,
    };
    // If the receiver is gone, the keeper is ending already.
    drop(hear.send(heard));
}

/// Called when `once run` is gone: renews the lease while the command is alive, and then records the doubt.
fn keep(task: &Task, heard: &Receiver<Heard>) -> Ended {
    // The server may be busy or away. Without the lease, the operation would be in doubt while the command runs.
    let (ledger, record) = loop {
        let found = open(task).and_then(|ledger| {
            let (record, _) = ledger.find(&task.operation)?;
            Ok((ledger, record))
        });
        match found {
            Ok(found) => break found,
            Err(error) => match heard.recv_timeout(POLL_INTERVAL) {
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return Err(error),
                Err(RecvTimeoutError::Timeout) => {}
            },
        }
    };
    let Some(lease) = ledger.ledger().attempts().lease_of(&record, task.attempt, task.lease_ms) else {
        return Ok(ExitCode::SUCCESS);
    };
    let kill_at = Instant::now() + GRACE;
    if task.if_killed == IfKilled::End {
        send_to_holders(Signal::SIGTERM);
    }
    loop {
        ledger.wait_for(lease.renew());
        let renew_at = Instant::now() + Duration::from_millis(lease.pause_ms());
        while Instant::now() < renew_at {
            if task.if_killed == IfKilled::End && Instant::now() >= kill_at {
                send_to_holders(Signal::SIGKILL);
            }
            match heard.recv_timeout(POLL_INTERVAL.min(renew_at.saturating_duration_since(Instant::now()))) {
                Ok(Heard::Over) => return Ok(ExitCode::SUCCESS),
                Ok(Heard::AllGone) | Err(RecvTimeoutError::Disconnected) => {
                    let reason = "`once run` was killed while its command ran; the command has ended since, \
                                  and how it ended is not known";
                    ledger.wait_for(lease.give_up(reason))?;
                    return Ok(ExitCode::SUCCESS);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// Sends a signal to every process that has the other end of this one's standard input: the command and all that it
/// started.
fn send_to_holders(signal: Signal) {
    let Ok(pipe) = std::fs::read_link("/proc/self/fd/0") else { return };
    let own = std::process::id();
    let pids = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok().filter(|pid| *pid != own));
    for pid in pids {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        if files.into_iter().any(|file| std::fs::read_link(file.path()).is_ok_and(|link| link == pipe)) {
            match kill(Pid::from_raw(i32::try_from(pid).unwrap_or(i32::MAX)), signal) {
                // One that has just ended needs no signal.
                Ok(()) | Err(_) => {}
            }
        }
    }
}
