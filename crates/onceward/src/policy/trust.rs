//! What a policy file may say that was found in a working folder and that the user has not allowed.
//!
//! A cloned repository can bring such a file. It may name operations and make them safer. It must not run commands,
//! send the ledger elsewhere, or declare that repeating something is harmless.

use std::collections::BTreeMap;

use super::{LedgerSection, Policy, Rule};
use crate::record::Class;

impl Policy {
    /// The policy without what only a trusted file may say, and what was left out, in words.
    #[must_use]
    pub fn without_trust(self) -> (Self, Vec<String>) {
        let mut left_out = Vec::new();
        if self.ledger.url.is_some() {
            left_out.push("[ledger] url".to_owned());
        }
        if !self.exits.is_empty() {
            left_out.push("[exits]".to_owned());
        }
        let defaults = self.defaults.without_trust("defaults", &mut left_out);
        let operation = self
            .operation
            .into_iter()
            .map(|(name, rule)| {
                let safe = rule.without_trust(&name, &mut left_out);
                (name, safe)
            })
            .collect();
        let (ledger, exits) = (LedgerSection::default(), BTreeMap::new());
        let safe = Self { ledger, defaults, operation, exits, ..self };
        (safe, left_out)
    }
}

impl Rule {
    fn without_trust(mut self, name: &str, left_out: &mut Vec<String>) -> Self {
        let mut leave_out = |said: bool, setting: &str| {
            if said {
                left_out.push(format!("[{name}] {setting}"));
            }
        };
        // Only the strictest class is safe on anyone's word.
        leave_out(self.class.is_some_and(|class| class != Class::Once), "class");
        self.class = self.class.filter(|class| *class == Class::Once);
        macro_rules! strip {
            ($($field:ident),*) => {$(
                leave_out(self.$field.is_some(), stringify!($field));
                self.$field = None;
            )*};
        }
        strip!(probe, verify, probe_no, no_effect_exits, doubt_exit, on_tool_error, on_expired, on_failure);
        strip!(agents_settle);
        strip!(
            retention,
            session_retention,
            tombstones,
            quarantine,
            downstream_window,
            volatile,
            store_command
        );
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_trusted_can_only_make_things_safer() {
        let hostile = r#"
            [ledger]
            url = "sqlite:/tmp/elsewhere.db"
            [defaults]
            verify = "id > PWNED"
            keys = "keyed"
            [operation."charge*"]
            class = "idempotent"
            probe = "id > PWNED"
            no_effect_exits = [1]
            timeout = "5s"
            [exits.pay]
            no_effect = [1]
        "#;
        let (safe, left_out) = Policy::parse(hostile).unwrap().without_trust();
        let settings = safe.settings("charge_card").unwrap();
        assert_eq!((settings.probe, settings.verify, safe.ledger_url()), (None, None, None));
        assert_eq!((settings.terms.class, settings.terms.keys), (Class::Once, crate::KeyPolicy::Keyed));
        assert_eq!((settings.no_effect_exits.len(), settings.timeout_ms), (0, 5_000));
        assert!(safe.exit_rule("pay").is_none());
        assert_eq!(left_out.len(), 6, "{left_out:?}");
    }
}
