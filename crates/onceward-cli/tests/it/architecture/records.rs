//! Only the ledger writes records.

use std::collections::BTreeMap;

use syn::buffer::{Cursor, TokenBuffer};
use syn::visit::{self, Visit};

use super::modules::{File, targets};
use super::{counted, none};

/// The methods of `Store` that write records, with the number of their arguments.
const WRITES: [(&str, usize); 4] = [("swap", 3), ("begin", 3), ("delete", 3), ("apply", 2)];

/// Functions of `onceward::transition` that change no record.
const NO_CHANGE: [&str; 1] = ["later"];

/// The files outside the ledger and the back ends that write or make records: how often, and why.
const LEFT: &[(&str, usize, &str)] = &[
    ("crates/onceward/src/decide.rs", 1, "a record as it is seen, for an answer"),
    ("crates/onceward-clap/src/builtin/settle.rs", 2, "the same"),
    ("crates/onceward-clap/src/envelope.rs", 2, "a record that is not stored yet, for an answer"),
    ("crates/onceward-store/src/sqlite/atomic.rs", 2, "expires records in the caller's transaction"),
    ("crates/onceward-http/src/api/records.rs", 4, "what a client's store writes, in the server's store"),
    ("crates/onceward-http/src/tenants/view.rs", 6, "the view of one tenant, around any store"),
    ("crates/onceward-sim/src/sim/store.rs", 3, "a store that loses replies, around any store"),
    ("crates/onceward-testkit/src/stepped.rs", 4, "a store on the stepped clock, around any store"),
];

/// Whether a file belongs to the ledger or to a back end.
fn may_write(file: &str) -> bool {
    let of_the_ledger = ["ledger", "transition", "event.rs", "conformance", "memory.rs", "store.rs"];
    let own = file.strip_prefix("crates/onceward/src/");
    own.is_some_and(|own| of_the_ledger.iter().any(|part| own.starts_with(part)))
        || file.starts_with("crates/onceward-store/src/")
        || file.starts_with("examples/folder-store/src/")
}

/// The writes in a file.
#[derive(Default)]
struct Writes(Vec<String>);

impl Writes {
    fn of(file: &File) -> Self {
        let mut writes = Self::default();
        writes.visit_file(&file.syntax);
        writes
    }

    fn call(&mut self, name: &str, arguments: usize) {
        if WRITES.contains(&(name, arguments)) {
            self.0.push(format!(".{name}(…)"));
        }
    }

    /// The calls in the tokens of a macro.
    fn tokens(&mut self, mut at: Cursor) {
        while !at.eof() {
            if let Some((inside, _, _, next)) = at.any_group() {
                self.tokens(inside);
                at = next;
                continue;
            }
            let called = at.ident().and_then(|(name, next)| Some((name, next.any_group()?)));
            if let Some((name, (inside, ..))) = called {
                self.call(&name.to_string(), arguments(inside));
            }
            let Some((_, next)) = at.token_tree() else { return };
            at = next;
        }
    }
}

/// The number of arguments in the parentheses of a call.
fn arguments(mut at: Cursor) -> usize {
    let (mut count, mut is_open) = (0, false);
    while let Some((token, next)) = at.token_tree() {
        let is_comma = token.to_string() == ",";
        count += usize::from(!is_comma && !is_open);
        (is_open, at) = (!is_comma, next);
    }
    count
}

impl<'ast> Visit<'ast> for Writes {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.call(&call.method.to_string(), call.args.len());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(TokenBuffer::new2(call.tokens.clone()).begin());
    }

    fn visit_expr_struct(&mut self, made: &'ast syn::ExprStruct) {
        let names: Vec<String> = made.path.segments.iter().map(|part| part.ident.to_string()).collect();
        if names == ["Record"] || names == ["onceward", "Record"] {
            self.0.push("Record { … }".to_owned());
        }
        visit::visit_expr_struct(self, made);
    }
}

#[test]
fn only_the_ledger_writes_records() {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for target in targets() {
        for file in target.files.iter().filter(|file| !may_write(&file.path)) {
            found.entry(file.path.clone()).or_default().extend(Writes::of(file).0);
        }
        for (file, path) in target.paths().filter(|_| target.package != "onceward") {
            let of_transition =
                path.iter().position(|part| part == "transition").and_then(|at| path.get(at + 1));
            let changes = of_transition.filter(|name| !NO_CHANGE.contains(&name.as_str()));
            found
                .entry(file.to_owned())
                .or_default()
                .extend(changes.map(|name| format!("transition::{name}")));
        }
    }
    none(counted(&found, LEFT), "only the ledger writes records");
}

#[test]
fn a_write_is_found_in_a_macro_and_another_method_is_none() {
    let of = |code: &str| {
        let syntax = syn::parse_str(&format!("fn code() {{ {code} }}")).unwrap();
        Writes::of(&File { path: String::new(), syntax }).0
    };
    assert_eq!(of("store.swap(expected, record, mode).await"), [".swap(…)"]);
    assert_eq!(of("matches!(store.begin(None, made(1, 2), mode).await?, Begin::Stopped(_))"), [".begin(…)"]);
    assert_eq!(of("let seen = Record { state, ..found };"), ["Record { … }"]);
    assert_eq!(
        of("words.swap(1, 2); ledger.begin(&intent).await?; assert!(flag.swap(true, order))"),
        [""; 0]
    );
}
