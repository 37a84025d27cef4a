//! What the exit codes of known programs prove.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::{DEFAULT_POLICY, Policy};

#[expect(clippy::expect_used, reason = "the default policy is part of the build, and a test reads it")]
static KNOWN: LazyLock<BTreeMap<String, ExitRule>> =
    LazyLock::new(|| Policy::parse(DEFAULT_POLICY).expect("the default policy is valid").exits);

/// The exit codes by which a program reports that it did nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ExitRule {
    /// These exit codes mean "no effect".
    #[serde(default)]
    pub no_effect: Vec<i32>,
    /// Unless one of these arguments is present: the program may have sent something earlier.
    #[serde(default)]
    pub unless: Vec<String>,
    /// Options whose value is the next argument. Any other argument without a hyphen is a target.
    #[serde(default)]
    pub values: Vec<String>,
    /// Unless there is more than one target, or one that expands to several (`{a,b}`, `[1-3]`).
    #[serde(default)]
    pub single: bool,
}

impl ExitRule {
    /// Whether this exit code proves that the program, called with these arguments, had no effect.
    #[must_use]
    pub fn proves_no_effect(&self, code: i32, arguments: &[&str]) -> bool {
        if !self.no_effect.contains(&code) {
            return false;
        }
        let mut targets = 0;
        let mut words = arguments.iter().copied();
        while let Some(word) = words.next() {
            if self.unless.iter().any(|flag| self.is_flag(word, flag)) {
                return false;
            }
            if self.takes_next(word) {
                words.next();
            } else if !word.starts_with('-') || word == "-" || word.starts_with("--url=") {
                targets += if word.contains(['{', '[']) { 2 } else { 1 };
            }
        }
        !self.single || targets <= 1
    }

    /// Whether the value of this option is the next argument. In a group of short options only the last one can take
    /// it; anything after an option with a value is that value.
    fn takes_next(&self, word: &str) -> bool {
        match short_options(word) {
            Some(letters) => {
                let first = letters.char_indices().find(|(_, letter)| self.has_value(*letter));
                first.is_some_and(|(at, letter)| at + letter.len_utf8() == letters.len())
            }
            None => self.values.iter().any(|option| option == word),
        }
    }

    fn has_value(&self, letter: char) -> bool {
        self.values.iter().any(|option| short_options(option).is_some_and(|own| own.chars().eq([letter])))
    }

    /// Whether an argument is this flag: with a value after `=`, abbreviated, or, for a short flag, within a group.
    fn is_flag(&self, word: &str, flag: &str) -> bool {
        let (name, _) = word.split_once('=').unwrap_or((word, ""));
        let abbreviated = name.len() > "--".len() && name.starts_with("--") && flag.starts_with(name);
        let among = short_options(word).zip(short_options(flag)).is_some_and(|(letters, flag)| {
            let value = letters.find(|letter| self.has_value(letter)).map_or(letters.len(), |at| at + 1);
            letters.get(..value).unwrap_or(letters).contains(flag)
        });
        name == flag || abbreviated || among
    }
}

/// The letters of `-abc`.
fn short_options(word: &str) -> Option<&str> {
    word.strip_prefix('-').filter(|letters| !letters.is_empty() && !letters.starts_with('-'))
}

impl Policy {
    /// Whether the policy itself has a rule for programs of this name.
    #[must_use]
    pub fn declares_exits(&self, program: &str) -> bool {
        self.exits.contains_key(program)
    }

    /// The rule for a program: the policy's own, or the built-in one, which is about the program that systems install
    /// under that name.
    #[must_use]
    pub fn exit_rule(&self, program: &str) -> Option<&ExitRule> {
        self.exits.get(program).or_else(|| KNOWN.get(program))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_connection_is_certain_only_for_one_request_without_redirects() {
        let policy = Policy::default();
        let curl = policy.exit_rule("curl").unwrap();
        for certain in [
            vec!["-sS", "-XPOST", "http://127.0.0.1:1/"],
            vec!["-sSX", "DELETE", "http://127.0.0.1:1/"],
            vec!["-XDELETE", "127.0.0.1:1"],
            vec![
                "-m",
                "5",
                "-H",
                "Idempotency-Key: k",
                "-d",
                "{\"amount\": [1]}",
                "--url",
                "http://127.0.0.1:1/",
            ],
            vec!["--max-time=5", "--data-raw", "a", "-o", "/dev/null", "-w", "%{http_code}", "localhost:1"],
        ] {
            assert!(curl.proves_no_effect(7, &certain), "{certain:?}");
        }
        for doubtful in [
            vec!["-sSL", "http://127.0.0.1:1/"],
            vec!["--location", "http://127.0.0.1:1/"],
            vec!["--retry=3", "http://127.0.0.1:1/"],
            vec!["--locat", "http://127.0.0.1:1/"],
            vec!["http://127.0.0.1:1/", "http://127.0.0.1:2/"],
            vec!["-d", "x", "127.0.0.1:1/charge", "127.0.0.1:2/"],
            vec!["--url", "127.0.0.1:1/charge", "127.0.0.1:2/"],
            vec!["--url=127.0.0.1:1/charge", "127.0.0.1:2/"],
            vec!["http://127.0.0.1:1/{charge,ship}"],
            vec!["http://127.0.0.1:1/[1-3]"],
            vec!["--an-option-from-the-future", "value", "http://127.0.0.1:1/"],
        ] {
            assert!(!curl.proves_no_effect(7, &doubtful), "{doubtful:?}");
        }
        for login in ["--anyauth", "--digest", "--negotiate", "--ntlm"] {
            assert!(!curl.proves_no_effect(7, &[login, "-u", "a:b", "http://127.0.0.1:1/"]), "{login}");
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
