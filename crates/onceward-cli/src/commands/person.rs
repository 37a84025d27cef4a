//! Who settles, releases or cancels an operation with a command.

use onceward::Word;

/// The word of the person who uses this command.
pub(super) fn person(tool: &str) -> Word {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    let user = user.map(|user| format!(", user {}", user.name)).unwrap_or_default();
    Word::person(format!("{tool}{user}"))
}
