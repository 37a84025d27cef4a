//! Which kind of file system a ledger is on, for `once doctor`.

use std::path::Path;

use nix::sys::statfs::statfs;

use crate::health::Finding;

/// What can happen to a ledger on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Risk {
    /// It is in memory, and lost when the machine restarts.
    InMemory,
    /// It is in the writable layer of a container, and lost with the container.
    ContainerLayer,
    /// Other machines may access it, and their locks are not visible.
    Network,
    /// The backing storage cannot be determined.
    Unknown,
}

/// The file systems worth reporting, by their magic numbers (`man 2 statfs`).
const KINDS: [(u32, &str, Risk); 14] = [
    (0x0102_1994, "tmpfs", Risk::InMemory),
    (0x8584_58f6, "ramfs", Risk::InMemory),
    (0x794c_7630, "overlayfs", Risk::ContainerLayer),
    (0x6161_7566, "aufs", Risk::ContainerLayer),
    (0x0000_6969, "nfs", Risk::Network),
    (0x0000_517b, "smb", Risk::Network),
    (0xff53_4d42, "cifs", Risk::Network),
    (0xfe53_4d42, "smb2", Risk::Network),
    (0x00c3_6400, "ceph", Risk::Network),
    (0x5346_414f, "afs", Risk::Network),
    (0x7375_7245, "coda", Risk::Network),
    (0x0bd0_0bd0, "lustre", Risk::Network),
    (0x0102_1997, "9p", Risk::Network),
    (0x6573_5546, "fuse", Risk::Unknown),
];

/// Reports whether the file system keeps the ledger and its locks.
pub(super) fn check_file_system(path: &Path) -> Finding {
    const WHAT: &str = "file system";
    match statfs(path) {
        // The magic number has 32 bits, whatever the type of the field.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it has 32 bits")]
        Ok(found) => assess(WHAT, found.filesystem_type().0 as u32),
        Err(error) => Finding::look(WHAT, format!("cannot be determined: {error}")),
    }
}

fn assess(what: &'static str, number: u32) -> Finding {
    match KINDS.iter().find(|(known, _, _)| *known == number) {
        None => Finding::good(what, "local"),
        Some((_, name, Risk::InMemory)) => Finding::look(
            what,
            format!("{name}: in memory, so a restart loses every operation; keep the ledger on a disk"),
        ),
        Some((_, name, Risk::ContainerLayer)) => Finding::look(
            what,
            format!("{name}: the ledger is deleted with the container; mount a folder for it"),
        ),
        Some((_, name, Risk::Network)) => Finding::bad(
            what,
            format!(
                "{name}: a network file system, on which locks and logs of other machines are not visible; keep the \
                 ledger on a local disk, or use postgres:// or redis://"
            ),
        ),
        Some((_, name, Risk::Unknown)) => Finding::look(
            what,
            format!("{name}: locks and syncs depend on the program behind it; use a local disk"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Verdict;

    #[test]
    fn volatile_file_systems_are_reported_and_network_ones_are_bad() {
        for (number, verdict) in [
            (0x0102_1994, Verdict::Look),
            (0x794c_7630, Verdict::Look),
            (0x6969, Verdict::Bad),
            (0xff53_4d42, Verdict::Bad),
            (0x6573_5546, Verdict::Look),
            (0xef53, Verdict::Good),
        ] {
            assert_eq!(assess("file system", number).verdict, verdict, "{number:#x}");
        }
    }

    #[test]
    fn tmpfs_is_recognized() {
        let found = check_file_system(Path::new("/dev/shm"));
        assert!(found.found.contains("tmpfs"), "{found:?}");
    }
}
