//! Whether an envelope is the word of the program that was started. A script prints the envelopes of the programs that
//! it runs, and one of them may say that nothing happened after another one has acted.

use std::path::Path;

/// The variable with which `once run` recognises the program that it starts.
pub const WITNESS: &str = "ONCE_WITNESS";

/// The value of [`WITNESS`]: the process id of `once run`, the token of the attempt, and the file of the program.
/// `None` if the file cannot be written as text: then no envelope is believed.
#[must_use]
pub fn witness_variable(parent: i32, token: &str, program: &Path) -> Option<String> {
    Some(format!("{parent} {token} {}", program.to_str()?))
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
    fn only_the_program_that_was_started_gets_the_token() {
        let shop = Path::new("/opt/my tools/shop");
        let variable = witness_variable(7, "op_a/1", shop).unwrap();
        assert_eq!(witness_token(&variable, 7, shop), Some("op_a/1"));
        assert_eq!(witness_token(&variable, 8, shop), None, "a child of a script");
        assert_eq!(witness_token(&variable, 7, Path::new("/opt/shop")), None, "in place of a script");
        for broken in ["", "7", "7 op_a/1", "x op_a/1 /opt/my tools/shop"] {
            assert_eq!(witness_token(broken, 7, shop), None, "{broken}");
        }
    }
}
