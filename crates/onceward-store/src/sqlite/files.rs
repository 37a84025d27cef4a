//! What kind of file system a ledger is on, for `once doctor`.

use std::path::Path;

use nix::sys::statfs::statfs;

use crate::health::Finding;

/// What becomes of a ledger on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is in memory.
    EndsWithTheMachine,
    /// It is in the layer of a container that is thrown away with it.
    EndsWithTheContainer,
    /// Other machines may have it as well, and their locks are not seen.
    IsShared,
    /// What is behind it cannot be told.
    Unknown,
}

/// The file systems that want a word, by the number that the kernel gives them (`man 2 statfs`).
const KINDS: [(u32, &str, Fate); 14] = [
    (0x0102_1994, "tmpfs", Fate::EndsWithTheMachine),
    (0x8584_58f6, "ramfs", Fate::EndsWithTheMachine),
    (0x794c_7630, "overlayfs", Fate::EndsWithTheContainer),
    (0x6161_7566, "aufs", Fate::EndsWithTheContainer),
    (0x0000_6969, "nfs", Fate::IsShared),
    (0x0000_517b, "smb", Fate::IsShared),
    (0xff53_4d42, "cifs", Fate::IsShared),
    (0xfe53_4d42, "smb2", Fate::IsShared),
    (0x00c3_6400, "ceph", Fate::IsShared),
    (0x5346_414f, "afs", Fate::IsShared),
    (0x7375_7245, "coda", Fate::IsShared),
    (0x0bd0_0bd0, "lustre", Fate::IsShared),
    (0x0102_1997, "9p", Fate::IsShared),
    (0x6573_5546, "fuse", Fate::Unknown),
];

/// Whether the file system keeps the ledger, and its locks.
pub(super) fn on_file_system(path: &Path) -> Finding {
    const WHAT: &str = "file system";
    match statfs(path) {
        // The kernel's number has 32 bits, whatever the type that carries it.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it has 32 bits")]
        Ok(found) => judged(WHAT, found.filesystem_type().0 as u32),
        Err(error) => Finding::look(WHAT, format!("cannot be told: {error}")),
    }
}

fn judged(what: &'static str, number: u32) -> Finding {
    match KINDS.iter().find(|(known, _, _)| *known == number) {
        None => Finding::good(what, "local"),
        Some((_, name, Fate::EndsWithTheMachine)) => Finding::look(
            what,
            format!("{name}: in memory, so a restart loses every operation; keep the ledger on a disk"),
        ),
        Some((_, name, Fate::EndsWithTheContainer)) => {
            Finding::look(what, format!("{name}: the ledger goes with its container; mount a folder for it"))
        }
        Some((_, name, Fate::IsShared)) => Finding::bad(
            what,
            format!(
                "{name}: a network file system, on which locks and logs of other machines are not seen; keep the \
                 ledger on a local disk, or use postgres:// or redis://"
            ),
        ),
        Some((_, name, Fate::Unknown)) => Finding::look(
            what,
            format!("{name}: locks and syncs are as good as the program behind it; a local disk is better"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Verdict;

    #[test]
    fn what_does_not_last_wants_a_look_and_what_is_shared_is_bad() {
        for (number, verdict) in [
            (0x0102_1994, Verdict::Look),
            (0x794c_7630, Verdict::Look),
            (0x6969, Verdict::Bad),
            (0xff53_4d42, Verdict::Bad),
            (0x6573_5546, Verdict::Look),
            (0xef53, Verdict::Good),
        ] {
            assert_eq!(judged("file system", number).verdict, verdict, "{number:#x}");
        }
    }

    #[test]
    fn memory_is_told_from_a_disk() {
        let found = on_file_system(Path::new("/dev/shm"));
        assert!(found.found.contains("tmpfs"), "{found:?}");
    }
}
