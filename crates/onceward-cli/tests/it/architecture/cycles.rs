//! No module imports another one in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::modules::{Imports, Target, targets};
use super::{counted, none};

/// The circles that are left: the crate, the number of modules in circles, and the reason.
const LEFT: &[(&str, usize, &str)] = &[];

/// The modules that are in circles, each with what it takes from the others of its circle.
fn circles(imports: &Imports) -> Vec<String> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|module| (module.as_str(), reachable(imports, module))).collect();
    let mut found = Vec::new();
    for (from, taken) in imports {
        let leads_back = |to: &str| reached.get(to).is_some_and(|modules| modules.contains(from.as_str()));
        let back = taken.iter().filter(|(to, _)| leads_back(to));
        let words =
            back.map(|(to, items)| format!("{to} ({})", Vec::from_iter(items.iter().cloned()).join(", ")));
        let words: Vec<String> = words.collect();
        if !words.is_empty() {
            found.push(format!("{from} -> {}", words.join("; ")));
        }
    }
    found
}

/// The modules that a module imports, and all that these import.
fn reachable<'a>(imports: &'a Imports, module: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![module]);
    while let Some(next) = open.pop() {
        let imported = imports.get(next).into_iter().flat_map(BTreeMap::keys);
        open.extend(imported.map(String::as_str).filter(|module| seen.insert(*module)));
    }
    seen
}

#[test]
fn no_module_imports_another_one_in_a_circle() {
    let (mut found, mut taken) = (BTreeMap::new(), 0);
    for target in targets() {
        let imports = target.imports();
        taken += imports.values().flat_map(BTreeMap::values).map(BTreeSet::len).sum::<usize>();
        found.insert(target.name.clone(), circles(&imports));
    }
    assert!(taken > 3000, "only {taken} imports: are the paths resolved?");
    none(counted(&found, LEFT), "no module imports another one in a circle");
}

/// Compares the circles of a crate with these files.
#[track_caller]
fn assert_circles(files: &[(&str, &str)], expected: &[&str]) {
    let read = |path: &Path| {
        let found = files.iter().find(|(name, _)| path == Path::new(name));
        found.map(|(_, text)| (*text).to_owned())
    };
    let target = Target::read("a crate", "a crate", Path::new("src/lib.rs"), &read);
    assert_eq!(circles(&target.imports()), expected);
}

#[test]
fn a_re_export_is_the_module_that_defines_the_item() {
    let root = ("src/lib.rs", "mod ledger; mod store; pub use ledger::Ledger; pub use store::Store;");
    let ledger =
        ("src/ledger.rs", "mod call; use crate::Store; pub use call::Call; pub struct Ledger(Store);");
    let call = ("src/ledger/call.rs", "use super::Ledger; pub struct Call(Ledger);");
    // The parent is imported by its own child only.
    assert_circles(&[root, ledger, call, ("src/store.rs", "pub struct Store;")], &[]);
    let store = ("src/store.rs", "pub struct Store(Vec<crate::Ledger>);");
    assert_circles(&[root, ledger, call, store], &["ledger -> store (Store)", "store -> ledger (Ledger)"]);
    // The path names the parent, and the item is the child's.
    let store = ("src/store.rs", "use super::ledger; pub struct Store(ledger::Call);");
    assert_circles(&[root, ledger, call, store], &[]);
    let call = ("src/ledger/call.rs", "use crate::Store; pub struct Call(Store);");
    let circle = ["ledger::call -> store (Store)", "store -> ledger::call (Call)"];
    assert_circles(&[root, ledger, call, store], &circle);
}

#[test]
fn macros_attributes_and_functions_import_too_and_tests_do_not() {
    let root = ("src/lib.rs", "mod one; mod two;");
    let one = ("src/one.rs", "use crate::two; pub fn print() { println!(\"{}\", two::text()); }");
    for other in [
        "pub fn text() { crate::one::print() }",
        "pub fn text() { if true { use crate::one::print; print() } }",
        "pub fn text() { vec![super::one::print()] }",
        "#[serde(with = \"crate::one\")] pub fn text() {}",
        "#[arg(value_parser = crate::one::print)] pub fn text() {}",
        "mod inner { pub fn print() { super::super::one::print() } } pub fn text() { inner::print() }",
        "use crate::one::*; pub fn text() { print() }",
    ] {
        let found = std::panic::catch_unwind(|| assert_circles(&[root, one, ("src/two.rs", other)], &[]));
        assert!(found.is_err(), "{other}");
    }
    for other in [
        "pub fn text() {} #[cfg(test)] mod tests { use crate::one::print; }",
        "pub fn text() {} #[cfg(all(test, unix))] fn test() { crate::one::print() }",
        "pub fn text() { ::one::print(); one.print() }",
    ] {
        assert_circles(&[root, one, ("src/two.rs", other)], &[]);
    }
}
