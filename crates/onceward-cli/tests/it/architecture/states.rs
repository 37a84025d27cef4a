//! A new state must be thought of everywhere.

use syn::visit::{self, Visit};
use syn::{Arm, Pat};

use super::modules::targets;
use super::none;

/// Finds the matches that name a state and have an arm for all others.
#[derive(Default)]
struct Matches(Vec<String>);

impl<'ast> Visit<'ast> for Matches {
    fn visit_expr_match(&mut self, matched: &'ast syn::ExprMatch) {
        let mut states = States::default();
        matched.arms.iter().for_each(|arm| states.visit_pat(&arm.pat));
        if !states.0.is_empty() && matched.arms.iter().any(is_for_all_others) {
            self.0.push(states.0.join(", "));
        }
        visit::visit_expr_match(self, matched);
    }
}

fn is_for_all_others(arm: &Arm) -> bool {
    matches!(arm.pat, Pat::Wild(_)) && arm.guard.is_none()
}

/// The states that patterns name.
#[derive(Default)]
struct States(Vec<String>);

impl<'ast> Visit<'ast> for States {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if let [.., of, state] = names.as_slice()
            && of == "State"
        {
            self.0.push(state.clone());
        }
    }
}

#[test]
fn a_new_state_must_be_thought_of_everywhere() {
    let mut broken = Vec::new();
    for target in targets() {
        for file in &target.files {
            let mut matches = Matches::default();
            matches.visit_file(&file.syntax);
            broken.extend(matches.0.iter().map(|states| format!("{}: after {states}", file.path)));
        }
    }
    none(broken, "no `_` in a match over states");
}

#[test]
fn a_state_is_found_inside_a_pattern() {
    let is_found = |arms: &str| {
        let mut matches = Matches::default();
        matches.visit_expr_match(&syn::parse_str(&format!("match value {{ {arms} }}")).unwrap());
        !matches.0.is_empty()
    };
    assert!(is_found("State::Done | State::Failed => 1, _ => 2"));
    assert!(is_found("(Some(onceward::State::Done), _) => 1, _ => 2"));
    assert!(!is_found("(State::Done, _) => 1, (State::Failed, 2) => 2"));
    assert!(!is_found("Class::Once => 1, _ => 2"));
    assert!(!is_found("State::Done => 1, _ if late => 2, State::Failed => 3"));
}
