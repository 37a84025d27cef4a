//! Properties of identity: two actions never share an id, and one action never has two.

use std::collections::BTreeMap;

use onceward::{Intent, Operation, OperationId};
use proptest::prelude::*;
use proptest::sample::select;

/// The parts that identify an action. The texts are few and contain separators, so that a careless encoding would
/// confuse two of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Said {
    scope: &'static str,
    chosen_name: bool,
    name: &'static str,
    key: Option<&'static str>,
    input: Vec<&'static str>,
    occurrence: Option<&'static str>,
}

const TEXTS: [&str; 12] =
    ["a", "b", "ab", "null", "\"a\"", "a\",\"b", "[]", "default", "1", "é", "e\u{301}", "[\"a\",null,\"b\"]"];
// Keys with `#` are left out: the second occurrence of `a` is the key `a#2`, by design.
const KEYS: [&str; 7] = ["a", "b", "ab", "null", "a\",\"b", "k1_a", "op_a"];

fn said() -> impl Strategy<Value = Said> {
    let text = || select(TEXTS.to_vec());
    (
        text(),
        any::<bool>(),
        text(),
        proptest::option::of(select(KEYS.to_vec())),
        proptest::collection::vec(text(), 0..3),
        proptest::option::of(select(vec!["1", "2", "x"])),
    )
        .prop_map(|(scope, chosen_name, name, key, input, occurrence)| Said {
            scope,
            chosen_name,
            name,
            key,
            input,
            occurrence,
        })
}

impl Said {
    fn intent(&self) -> Intent {
        let mut operation =
            if self.chosen_name { Operation::new(self.name) } else { Operation::unnamed(self.name) };
        operation = operation.scope(self.scope).input(serde_json::json!({"argv": self.input}));
        if let Some(key) = self.key {
            operation = operation.key(key);
        }
        if let Some(occurrence) = self.occurrence {
            operation = operation.occurrence(occurrence);
        }
        operation.intent().unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    /// The identity by the contract: scope, name and key. A name that the caller did not choose does not count with a
    /// given key. Without a key, the inputs are the key. Without an occurrence, it is the first one.
    fn identity(&self) -> (&str, Option<&str>, Result<&str, &[&'static str]>, &str) {
        let name = (self.chosen_name || self.key.is_none()).then_some(self.name);
        (self.scope, name, self.key.ok_or(&*self.input), self.occurrence.unwrap_or("1"))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn two_actions_have_one_id_only_if_they_are_one(a in said(), b in said()) {
        let (one, other) = (a.intent(), b.intent());
        prop_assert_eq!(one.id == other.id, a.identity() == b.identity(), "{:?} {:?}", a, b);
        prop_assert_eq!(one.fingerprint == other.fingerprint, a.input == b.input);
    }

    /// Pairs that differ in only one part are the easiest to confuse.
    #[test]
    fn a_change_of_one_part_is_another_action(a in said(), b in said(), part in 0..6) {
        let changed = match part {
            0 => Said { scope: b.scope, ..a.clone() },
            1 => Said { chosen_name: b.chosen_name, ..a.clone() },
            2 => Said { name: b.name, ..a.clone() },
            3 => Said { key: b.key, ..a.clone() },
            4 => Said { input: b.input, ..a.clone() },
            _ => Said { occurrence: b.occurrence, ..a.clone() },
        };
        prop_assert_eq!(a.intent().id == changed.intent().id, a.identity() == changed.identity(), "{:?} {:?}", a, changed);
    }

    /// Moving the boundary between two parts changes the id.
    #[test]
    fn where_one_part_ends_and_the_next_begins_is_part_of_the_id(text in "[ab\",\\[\\]\\\\]{3,9}", cuts in any::<[u8; 4]>()) {
        let parts = |first: u8, second: u8| {
            let (first, second) = (usize::from(first) % text.len(), usize::from(second) % text.len());
            let (first, second) = (first.min(second), first.max(second));
            [&text[..first], &text[first..second], &text[second..]]
        };
        let (one, other) = (parts(cuts[0], cuts[1]), parts(cuts[2], cuts[3]));
        let id = |[scope, name, key]: [&str; 3]| OperationId::of(scope, name, key);
        prop_assert_eq!(id(one) == id(other), one == other);
    }

    #[test]
    fn a_number_of_the_ledger_is_no_label_of_a_caller(a in said(), number in 2_u64..40, label in 2_u64..40) {
        let first = Said { occurrence: None, key: None, ..a };
        let operation =
            if first.chosen_name { Operation::new(first.name) } else { Operation::unnamed(first.name) };
        let operation = operation.scope(first.scope).input(serde_json::json!({"argv": first.input}));
        let labelled = operation.occurrence(label.to_string()).intent().unwrap();
        let counted = first.intent().at_occurrence(number).unwrap();
        prop_assert_ne!(&labelled.id, &counted.id);
        prop_assert_eq!((labelled.number, counted.number), (None, Some(number)));
        let action = first.intent().id;
        prop_assert_eq!((labelled.action(), counted.action()), (action.clone(), action));
    }
}

proptest! {
    // Fewer: making texts of any kind takes ten times as long as comparing them.
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// An unnamed operation never has the id of a named one, for any texts.
    #[test]
    fn a_named_and_an_unnamed_operation_never_meet(
        scopes in any::<[String; 2]>(), name in any::<String>(), keys in any::<[String; 2]>(),
    ) {
        let named = OperationId::of(&scopes[0], &name, &keys[0]);
        prop_assert_ne!(&named, &OperationId::unnamed(&scopes[1], &keys[1]));
        prop_assert_ne!(&named, &OperationId::unnamed(&scopes[0], &keys[0]));
        let same = OperationId::unnamed(&scopes[0], &keys[0]) == OperationId::unnamed(&scopes[1], &keys[1]);
        prop_assert_eq!(same, (&scopes[0], &keys[0]) == (&scopes[1], &keys[1]));
    }
}

/// All combinations of the texts in one map: as many ids as actions.
#[test]
fn there_are_as_many_ids_as_actions() {
    let mut ids: BTreeMap<OperationId, (String, Option<String>, String)> = BTreeMap::new();
    for scope in TEXTS {
        for key in TEXTS {
            for name in TEXTS.map(Some).into_iter().chain([None]) {
                let id = match name {
                    Some(name) => OperationId::of(scope, name, key),
                    None => OperationId::unnamed(scope, key),
                };
                let action = (scope.to_owned(), name.map(str::to_owned), key.to_owned());
                let other = ids.insert(id, action.clone());
                assert_eq!(other, None, "{action:?}");
            }
        }
    }
    assert_eq!(ids.len(), 12 * 12 * 13);
}
