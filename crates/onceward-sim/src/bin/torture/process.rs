//! Processes: their children, their end, and signals to them.

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Trouble;

/// How long an awaited step may take on a machine that is very busy. Whatever takes longer does not come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// The process id of a child.
#[expect(clippy::expect_used, reason = "the kernel's process ids are positive and fit into 31 bits")]
pub(crate) fn id(child: &Child) -> i32 {
    i32::try_from(child.id()).expect("a process id fits into an i32")
}

/// Sends a signal. A process that has ended needs none.
pub(crate) fn send(pid: i32, signal: Signal) {
    drop(kill(Pid::from_raw(pid), signal).map_err(std::io::Error::from));
}

/// The child processes of this process.
pub(crate) fn children(parent: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id| stat(*id).is_some_and(|(_, its_parent)| its_parent == parent)).collect()
}

/// Waits for the command that this wrapper starts.
pub(crate) fn wait_for_child(parent: i32, limit: Duration) -> Option<i32> {
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if let Some(child) = children(parent).first() {
            return Some(*child);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// Waits until the process is suspended, which takes a moment after the signal.
pub(crate) fn wait_stopped(pid: i32, limit: Duration) -> Result<(), Trouble> {
    let begun = Instant::now();
    while stat(pid).is_none_or(|(state, _)| state != 'T') {
        if begun.elapsed() > limit {
            return Err(format!("process {pid} is not stopped").into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Waits until the file exists.
pub(crate) fn wait_for_file(file: &Path, limit: Duration) -> Result<(), Trouble> {
    let begun = Instant::now();
    while !file.exists() {
        if begun.elapsed() > limit {
            return Err(format!("{} is not there", file.display()).into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Waits until the process has ended; a zombie counts as ended.
pub(crate) fn wait_gone(pid: i32, limit: Duration) -> Result<(), Trouble> {
    let begun = Instant::now();
    while stat(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X') {
        if begun.elapsed() > limit {
            return Err(format!("process {pid} has not ended").into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The state and the parent of a process.
fn stat(pid: i32) -> Option<(char, i32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything.
    let (_, rest) = text.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}
