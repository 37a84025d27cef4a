//! What the exit codes of known programs prove.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::{DEFAULT_POLICY, Policy};

static KNOWN: LazyLock<BTreeMap<String, ExitRule>> =
    LazyLock::new(|| Policy::parse(DEFAULT_POLICY).map(|policy| policy.exits).unwrap_or_default());

/// The exit codes by which a program says that it did nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExitRule {
    /// These exit codes mean "no effect".
    #[serde(default)]
    pub no_effect: Vec<i32>,
    /// Not if one of these arguments is there: the program may have sent something before.
    #[serde(default)]
    pub unless: Vec<String>,
    /// Not if more than one argument contains this text.
    #[serde(default)]
    pub single: Option<String>,
}

impl ExitRule {
    /// Whether the program, called with these arguments, proves by this exit code that it did nothing.
    #[must_use]
    pub fn proves_no_effect(&self, code: i32, arguments: &[&str]) -> bool {
        let excluded =
            arguments.iter().any(|argument| self.unless.iter().any(|flag| is_flag(argument, flag)));
        let single = self
            .single
            .as_deref()
            .is_none_or(|text| arguments.iter().filter(|argument| argument.contains(text)).count() <= 1);
        self.no_effect.contains(&code) && !excluded && single
    }
}

impl Policy {
    /// The rule for a program: the policy's own, or the one that is built in.
    #[must_use]
    pub fn exit_rule(&self, program: &str) -> Option<&ExitRule> {
        self.exits.get(program).or_else(|| KNOWN.get(program))
    }
}

/// Whether an argument is this flag: with a value behind `=`, or, for a short one, among other short ones.
fn is_flag(argument: &str, flag: &str) -> bool {
    let long = argument == flag || argument.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='));
    let letter = flag.strip_prefix('-').filter(|letter| letter.chars().count() == 1);
    let cluster = argument.strip_prefix('-').filter(|letters| !letters.starts_with('-'));
    long || letter.zip(cluster).is_some_and(|(letter, cluster)| cluster.contains(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_connection_is_certain_only_for_one_request_without_redirects() {
        let policy = Policy::default();
        let curl = policy.exit_rule("curl").unwrap();
        assert!(curl.proves_no_effect(7, &["-sS", "-XPOST", "http://127.0.0.1:1/"]));
        for doubtful in [
            vec!["-sSL", "http://127.0.0.1:1/"],
            vec!["--location", "http://127.0.0.1:1/"],
            vec!["--retry=3", "http://127.0.0.1:1/"],
            vec!["http://127.0.0.1:1/", "http://127.0.0.1:2/"],
        ] {
            assert!(!curl.proves_no_effect(7, &doubtful), "{doubtful:?}");
        }
        for code in [22, 28, 52, 55, 56] {
            assert!(!curl.proves_no_effect(code, &["http://127.0.0.1:1/"]), "{code}");
        }
        assert!(policy.exit_rule("pay.sh").is_none());
    }

    #[test]
    fn a_table_of_the_users_own_replaces_the_built_in_one() {
        let policy = Policy::parse("[exits.curl]\nno_effect = [22]").unwrap();
        let curl = policy.exit_rule("curl").unwrap();
        assert!(
            curl.proves_no_effect(22, &["-f", "http://127.0.0.1:1/"]) && !curl.proves_no_effect(7, &["x"])
        );
    }
}
