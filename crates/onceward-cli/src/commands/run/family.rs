//! The processes that a command has started, so that a time limit ends all of them.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Makes this process the new parent of descendants whose own parent ends, so that they can still be found.
pub(super) fn adopt_orphans() {
    match nix::sys::prctl::set_child_subreaper(true) {
        // Without it, a process that left its parent is not found, and still holds the attempt's lock.
        Ok(()) | Err(_) => {}
    }
}

/// Sends a signal to every descendant of this process.
pub(super) fn signal_all(signal: Signal) {
    for pid in descendants() {
        match kill(pid, signal) {
            // One that has just ended needs no signal.
            Ok(()) | Err(_) => {}
        }
    }
}

/// Whether any descendant still runs.
pub(super) fn any_left() -> bool {
    !descendants().is_empty()
}

/// Every living descendant of this process.
fn descendants() -> Vec<Pid> {
    let parents: Vec<(i32, i32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| Some((pid, living_parent(pid)?)))
        .collect();
    let mut found = vec![i32::try_from(std::process::id()).unwrap_or_default()];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.into_iter().skip(1).map(Pid::from_raw).collect()
}

/// The parent of a process, unless the process is a zombie.
fn living_parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name is in parentheses, and may hold any character.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (state != "Z" && state != "X").then_some(parent)
}
