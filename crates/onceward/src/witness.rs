//! Whether an envelope is the word of the program that was started. A script prints the envelopes of the programs that
//! it runs, and one of them may say that nothing happened after another one has acted.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The variable with which `once run` recognises the program that it starts.
pub const WITNESS: &str = "ONCE_WITNESS";

/// The same over MCP, in `_meta`: of a listed tool, that it repeats a witness; of a call, the witness of the attempt.
pub const WITNESS_META: &str = "dev.onceward/witness";

/// The word by which a tool that is an Onceward itself shows that its envelope is the answer to this attempt. It is
/// random and new for each attempt, and only the program that was started gets it. A server that the program calls, or
/// another program, cannot know it.
#[derive(Clone, PartialEq, Eq)]
pub struct Witness(String);

impl Witness {
    /// A witness of these random bytes.
    #[must_use]
    pub fn new(random: [u8; 16]) -> Self {
        Self(random.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The text that the tool repeats.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether an envelope has this witness.
    #[must_use]
    pub fn confirms(&self, said: Option<&str>) -> Option<Witnessed> {
        (said == Some(self.as_str())).then_some(Witnessed(()))
    }
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Witness(…)")
    }
}

/// The proof that an envelope has the witness of its attempt. Only [`Witness::confirms`] makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witnessed(());

/// The value of [`WITNESS`]: the process id of `once run`, the witness of the attempt, and the file of the program.
/// `None` if the file cannot be written as text: then no envelope is believed.
#[must_use]
pub fn witness_variable(parent: i32, witness: &Witness, program: &Path) -> Option<String> {
    Some(format!("{parent} {} {}", witness.as_str(), program.to_str()?))
}

/// The token that the program in this file may print in its envelope, as a child of `parent`. A program that another
/// one has started gets none: not from a script (its parent differs), nor in its place (its file differs).
#[must_use]
pub fn witness_token<'a>(variable: &'a str, parent: i32, program: &Path) -> Option<&'a str> {
    let mut parts = variable.splitn(3, ' ');
    let (told, token, file) = (parts.next()?, parts.next()?, parts.next()?);
    (told.parse() == Ok(parent) && Path::new(file) == program).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_witness_confirms() {
        let (one, other) = (Witness::new([7; 16]), Witness::new([8; 16]));
        assert_eq!(one.as_str().len(), 32);
        assert!(one.confirms(Some(one.as_str())).is_some());
        for said in [None, Some(""), Some(other.as_str()), Some(&one.as_str()[..31])] {
            assert_eq!(one.confirms(said), None, "{said:?}");
        }
        assert!(!format!("{one:?}").contains(one.as_str()), "logs do not show it");
    }

    #[test]
    fn only_the_program_that_was_started_gets_the_token() {
        let shop = Path::new("/opt/my tools/shop");
        let witness = Witness::new([3; 16]);
        let variable = witness_variable(7, &witness, shop).unwrap();
        assert_eq!(witness_token(&variable, 7, shop), Some(witness.as_str()));
        assert_eq!(witness_token(&variable, 8, shop), None, "a child of a script");
        assert_eq!(witness_token(&variable, 7, Path::new("/opt/shop")), None, "in place of a script");
        for broken in ["", "7", "7 op_a/1", "x op_a/1 /opt/my tools/shop"] {
            assert_eq!(witness_token(broken, 7, shop), None, "{broken}");
        }
    }
}
