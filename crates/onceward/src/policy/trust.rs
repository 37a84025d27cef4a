//! What a policy file from a working folder may set before the user trusts it.
//!
//! A cloned repository can contain such a file. It applies only if there is no trusted policy, so it is compared with
//! the built-in default: it may lead to fewer effects, more doubt or fewer concurrent calls. It must not run
//! commands, change what is sent, move the ledger, change which calls are the same operation, stop a command, or
//! store more than the request of a call that it holds back.

use super::{DEFAULT_POLICY, Policy};

/// Which values of a setting an untrusted file may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Untrusted {
    /// None.
    Nothing,
    /// Every value, because all are at least as safe as the default.
    Anything,
    /// Only these values.
    Only(&'static [&'static str]),
    /// Only a number that is not larger than the default.
    AtMostDefault,
}

/// The decision for each setting of a rule.
const DECISIONS: [(&str, Untrusted); 37] = [
    // The strictest class. All others allow a second run.
    ("class", Untrusted::Only(&["once"])),
    // Requiring a key makes `once run` refuse calls. In `once mcp` it would let every call without a key run, so it
    // is ignored there (`Policy::tool`).
    ("keys", Untrusted::Only(&["strict", "keyed"])),
    // A different identity would not find operations that are done or in doubt under the old one.
    ("key", Untrusted::Nothing),
    ("volatile", Untrusted::Nothing),
    // Times after which something expires or is presumed dead.
    ("lease", Untrusted::Nothing),
    ("retention", Untrusted::Nothing),
    ("session_retention", Untrusted::Nothing),
    ("tombstones", Untrusted::Nothing),
    ("quarantine", Untrusted::Nothing),
    ("downstream_window", Untrusted::Nothing),
    ("repeat_window", Untrusted::Nothing),
    // Times that make a caller wait.
    ("wait", Untrusted::Nothing),
    ("backoff", Untrusted::Nothing),
    // A timeout stops a command in the middle of its work.
    ("timeout", Untrusted::Nothing),
    ("attempts", Untrusted::AtMostDefault),
    ("retries", Untrusted::AtMostDefault),
    ("on_failure", Untrusted::Only(&["replay"])),
    ("on_expired", Untrusted::Only(&["refuse"])),
    // It only delays a call, or has a person decide about it. What is stored runs on the user's word only.
    ("hold", Untrusted::Anything),
    ("release", Untrusted::Only(&["manual"])),
    // These run commands, or define what an answer means.
    ("probe", Untrusted::Nothing),
    ("verify", Untrusted::Nothing),
    ("undo", Untrusted::Nothing),
    ("verify_deadline", Untrusted::Nothing),
    ("verify_interval", Untrusted::Nothing),
    ("probe_no", Untrusted::Nothing),
    ("no_effect_exits", Untrusted::Nothing),
    ("doubt_exit", Untrusted::Anything),
    ("on_tool_error", Untrusted::Only(&["in_doubt"])),
    // These change what is reported, stored or sent.
    ("effect", Untrusted::Nothing),
    ("store_command", Untrusted::Nothing),
    ("max_output", Untrusted::Nothing),
    // A rule that matches everything would leave nothing to replay.
    ("redact", Untrusted::Nothing),
    ("key_argument", Untrusted::Nothing),
    ("agents_settle", Untrusted::Nothing),
    ("lock", Untrusted::Anything),
    ("concurrency", Untrusted::Anything),
];

impl Policy {
    /// The policy without the settings that only a trusted file may make, and a description of what was left out.
    #[must_use]
    pub fn without_trust(self) -> (Self, Vec<String>) {
        let mut left_out = Vec::new();
        let mut source = self.source;
        for section in ["ledger", "exits", "serve", "tenant", "upstream", "hook"] {
            if source.remove(section).is_some() {
                left_out.push(format!("[{section}]"));
            }
        }
        if let Some(defaults) = source.get_mut("defaults").and_then(toml::Value::as_table_mut) {
            keep_what_is_safe(defaults, "defaults", &mut left_out);
        }
        let operations = source.get_mut("operation").and_then(toml::Value::as_table_mut);
        for (name, rule) in operations.into_iter().flatten() {
            rule.as_table_mut().into_iter().for_each(|rule| keep_what_is_safe(rule, name, &mut left_out));
        }
        // The complete file was valid, so it is still valid without some of its lines.
        let safe = source.clone().try_into().unwrap_or_default();
        (Self { source, is_untrusted: true, ..safe }, left_out)
    }
}

fn keep_what_is_safe(rule: &mut toml::Table, title: &str, left_out: &mut Vec<String>) {
    rule.retain(|name, value| {
        let keeps = is_safe(name, value);
        if !keeps {
            left_out.push(format!("[{title}] {name}"));
        }
        keeps
    });
}

fn is_safe(name: &str, value: &toml::Value) -> bool {
    let decision = DECISIONS.iter().find(|(known, _)| *known == name).map(|(_, decision)| *decision);
    match decision {
        None | Some(Untrusted::Nothing) => false,
        Some(Untrusted::Anything) => true,
        Some(Untrusted::Only(words)) => value.as_str().is_some_and(|word| words.contains(&word)),
        Some(Untrusted::AtMostDefault) => {
            let default = built_in(name).as_ref().and_then(toml::Value::as_integer);
            value.as_integer().zip(default).is_some_and(|(value, default)| value <= default)
        }
    }
}

fn built_in(name: &str) -> Option<toml::Value> {
    let policy: toml::Table = toml::from_str(DEFAULT_POLICY).ok()?;
    policy.get("defaults")?.get(name).cloned()
}

#[cfg(test)]
mod tests {
    use super::super::fields::{RULE, ValueType};
    use super::*;
    use crate::KeyPolicy;
    use crate::record::Class;

    #[test]
    fn every_setting_has_a_decision() {
        let mut decided: Vec<&str> = DECISIONS.iter().map(|(name, _)| *name).collect();
        let mut known: Vec<&str> = RULE.iter().map(|(name, _)| *name).collect();
        decided.sort_unstable();
        known.sort_unstable();
        assert_eq!(decided, known);
    }

    /// Which values of each setting an untrusted file may set, and which not.
    #[test]
    fn only_values_that_make_things_safer_count() {
        for (name, kind) in RULE {
            let (values, counting): (Vec<&str>, &[&str]) = match kind {
                ValueType::Word(words) => {
                    let counting: &[&str] = match name {
                        "class" => &["once"],
                        "keys" => &["strict", "keyed"],
                        "on_failure" => &["replay"],
                        "on_expired" => &["refuse"],
                        "on_tool_error" => &["in_doubt"],
                        "release" => &["manual"],
                        _ => &[],
                    };
                    (words.to_vec(), counting)
                }
                ValueType::Span => (vec!["1ms", "1h", "90d"], &[]),
                ValueType::Hold => (vec!["no", "10m", "approve"], &["no", "10m", "approve"]),
                ValueType::Number(_) => match name {
                    "attempts" => (vec!["1", "20", "21"], &["1", "20"]),
                    "retries" => (vec!["0", "1"], &["0"]),
                    "concurrency" => (vec!["1"], &["1"]),
                    _ => (vec!["1", "16777216"], &[]),
                },
                ValueType::Exits if name == "doubt_exit" => (vec!["[3]"], &["[3]"]),
                ValueType::Exits => (vec!["[3]"], &[]),
                ValueType::Texts => (vec!["['a']"], &[]),
                ValueType::Redaction => (vec!["['re:.']"], &[]),
                ValueType::Text if name == "lock" => (vec!["x"], &["x"]),
                ValueType::Text => (vec!["x"], &[]),
                ValueType::Flag => (vec!["true", "false"], &[]),
                ValueType::Undo => (vec!["id > PWNED", "{tool = 'x'}"], &[]),
                ValueType::Question => (vec!["id > PWNED", "{tool = 'x', expect = 'y'}"], &[]),
            };
            for value in values {
                let is_bare = value.parse::<i64>().is_ok() || value.starts_with(['[', '{']);
                let is_bare = is_bare || matches!(kind, ValueType::Flag);
                let written = if is_bare { value.to_owned() } else { format!("\"{value}\"") };
                for section in ["defaults", "operation.x"] {
                    let policy = Policy::parse(&format!("[{section}]\n{name} = {written}\n")).unwrap();
                    let (safe, left_out) = policy.without_trust();
                    let counts = counting.contains(&value);
                    assert_eq!(left_out.is_empty(), counts, "{name} = {written}");
                    let shown = safe.explain("x");
                    let decided = shown.iter().find(|setting| setting.name == name);
                    let is_ours = decided.is_some_and(|one| one.origin != super::super::Origin::BuiltIn);
                    assert_eq!(is_ours, counts, "{name} = {written}");
                }
            }
        }
    }

    #[test]
    fn a_file_that_is_not_trusted_can_only_make_things_safer() {
        let hostile = r#"
            [ledger]
            url = "sqlite:/tmp/elsewhere.db"
            encryption_key_file = "known.key"
            [defaults]
            verify = "id > PWNED"
            keys = "keyed"
            [operation."charge*"]
            class = "idempotent"
            probe = "id > PWNED"
            no_effect_exits = [1]
            timeout = "5s"
            max_output = 1
            key_argument = "note"
            [operation.mail]
            keys = "strict"
            [exits.pay]
            no_effect = [1]
        "#;
        let (safe, left_out) = Policy::parse(hostile).unwrap().without_trust();
        let settings = safe.settings("charge_card").unwrap();
        assert_eq!((settings.probe, settings.verify, safe.ledger_url()), (None, None, None));
        assert_eq!((settings.terms.class, settings.terms.keys), (Class::Once, KeyPolicy::Keyed));
        assert_eq!((settings.no_effect_exits.len(), settings.timeout_ms), (0, 0));
        assert_eq!((settings.max_output, settings.tool.key_argument), (16 << 20, None));
        assert!(safe.exit_rule("pay").is_none());
        assert_eq!(safe.encryption_key_file(), None);
        assert_eq!(left_out.len(), 9, "{left_out:?}");
    }

    #[test]
    fn for_tools_a_file_that_is_not_trusted_cannot_ask_for_keys() {
        let text =
            "[defaults]\nkeys = 'keyed'\n[operation.a]\nkeys = 'keyed'\n[operation.b]\nkeys = 'strict'\n";
        let (safe, _) = Policy::parse(text).unwrap().without_trust();
        let keys = |tool: &str| {
            let rule = safe.tool(&[tool]).unwrap();
            (rule.keys, rule.default_keys)
        };
        assert_eq!(keys("a"), (None, None));
        assert_eq!(keys("b"), (Some(KeyPolicy::Strict), None));
        let trusted = Policy::parse(text).unwrap().tool(&["a"]).unwrap();
        assert_eq!(trusted.keys, Some(KeyPolicy::Keyed));
    }
}
