//! The rules `[operation.NAME]` of the policy, for requests through the gateway.

use onceward::{InvalidInput, Policy, RequestUndo, Terms};

use super::rules::Rule;

/// Settings that have the same name and meaning in a rule of an upstream.
const SHARED: [&str; 10] = [
    "class",
    "keys",
    "volatile",
    "effect",
    "timeout",
    "wait",
    "attempts",
    "backoff",
    "retention",
    "quarantine",
];

/// What the policy says about one operation.
#[derive(Default)]
pub(crate) struct OperationRule {
    /// What it says instead of the upstream's rules.
    pub(crate) rule: Rule,
    /// The settings that an upstream's rule does not have, by name.
    others: Vec<String>,
    terms: Terms,
}

impl OperationRule {
    /// The rule for an operation with this name.
    ///
    /// # Errors
    /// When the policy's settings for it are inconsistent.
    pub(crate) fn of(policy: &Policy, name: &str) -> Result<Self, InvalidInput> {
        Self::of_any(policy, &[name])
    }

    /// The rule for an operation with these names, from the most specific one to the most general.
    ///
    /// # Errors
    /// When the policy's settings for it are inconsistent.
    pub(crate) fn of_any(policy: &Policy, names: &[&str]) -> Result<Self, InvalidInput> {
        let section = policy.operation_section(names);
        let settings = policy.settings_of(names)?;
        let (terms, undo) = (settings.terms, settings.undo);
        if section.is_empty() {
            return Ok(Self { terms, ..Self::default() });
        }
        let renamed = |name: &str| match name {
            "key" => Some("key_fields"),
            "downstream_window" => Some("window"),
            name => SHARED.into_iter().find(|shared| *shared == name),
        };
        let rule: toml::Table = section
            .iter()
            .filter_map(|(name, value)| Some((renamed(name)?.to_owned(), value.clone())))
            .collect();
        let mut rule: Rule =
            rule.try_into().map_err(|error: toml::de::Error| InvalidInput::new(error.message()))?;
        // Only a request takes a request back here.
        rule.undo = undo.filter(|_| section.contains_key("undo")).as_ref().and_then(RequestUndo::of);
        Ok(Self { rule, others: section.keys().cloned().collect(), terms })
    }

    /// Sets what only the policy has settings for.
    pub(crate) fn apply(self, terms: &mut Terms) {
        let has = |name: &str| self.others.iter().any(|other| other == name);
        if has("hold") {
            terms.hold = self.terms.hold;
        }
        if has("lease") {
            terms.lease_ms = self.terms.lease_ms;
        }
        if has("session_retention") {
            terms.session_retention_ms = self.terms.session_retention_ms;
        }
        if has("tombstones") {
            terms.tombstone_ms = self.terms.tombstone_ms;
        }
        if has("retries") {
            terms.retries = self.terms.retries;
        }
        if has("on_failure") {
            terms.on_failure = self.terms.on_failure;
        }
        if has("on_expired") {
            terms.on_expired = self.terms.on_expired;
        }
        // What must not be stored is not stored, also if only the defaults say so.
        terms.redact = self.terms.redact;
    }
}

#[cfg(test)]
mod tests {
    use onceward::{Class, OnFailure};

    use super::*;

    #[test]
    fn only_what_a_rule_says_applies() {
        let text = "[defaults]\nwait = \"7s\"\n[operation.\"pay POST *\"]\nclass = \"once\"\nkey = [\"id\"]\n\
                    downstream_window = \"1m\"\non_failure = \"replay\"\n[operation.\"pay POST /x\"]\nattempts = 2\n";
        let policy = Policy::parse(text).unwrap();
        let found = OperationRule::of(&policy, "pay POST /x").unwrap();
        assert_eq!((found.rule.class, found.rule.attempts), (Some(Class::Once), Some(2)));
        assert_eq!(found.rule.key_fields.as_deref(), Some(&["id".to_owned()][..]));
        assert_eq!((found.rule.window.as_deref(), &found.rule.wait), (Some("1m"), &None));
        let mut terms = Terms::default();
        let before = terms.clone();
        found.apply(&mut terms);
        assert_eq!((terms.on_failure, terms.lease_ms), (OnFailure::Replay, before.lease_ms));
        assert_eq!(OperationRule::of(&policy, "other").unwrap().rule, Rule::default());
    }
}
