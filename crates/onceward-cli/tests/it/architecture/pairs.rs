//! Where two features meet, the answer is decided and shown: `pairs.toml` has a cell for every pair.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{none, root};

/// The table of pairs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pairs {
    features: Vec<Feature>,
    #[serde(rename = "pair")]
    cells: Vec<Cell>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Feature {
    name: String,
    is: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cell {
    of: [String; 2],
    #[serde(default)]
    answer: String,
    /// The names of the tests that show the answer.
    #[serde(default)]
    tests: Vec<String>,
    /// Why the two cannot meet.
    #[serde(default)]
    never: String,
}

impl Cell {
    /// What is wrong with the cell itself.
    fn problem(&self) -> Option<&'static str> {
        match (!self.never.is_empty(), !self.tests.is_empty()) {
            (true, false) if self.answer.is_empty() => None,
            (false, true) if self.answer.is_empty() => Some("has no answer"),
            (false, true) => None,
            (false, false) => Some("has neither tests nor a reason why the two never meet"),
            (true, _) => Some("says that the two never meet, and more"),
        }
    }
}

/// The mistakes of a table.
fn mistakes(text: &str, is_test: impl Fn(&str) -> bool) -> Vec<String> {
    let table: Pairs = match toml::from_str(text) {
        Ok(table) => table,
        Err(error) => return vec![error.to_string()],
    };
    let (mut broken, mut seen) = (Vec::new(), BTreeSet::new());
    let place = |name: &str| table.features.iter().position(|feature| feature.name == name);
    for (at, Feature { name, is }) in table.features.iter().enumerate() {
        if place(name) != Some(at) || is.is_empty() {
            broken.push(format!("the feature {name} is listed twice, or is not described"));
        }
    }
    for cell in &table.cells {
        let [one, other] = &cell.of;
        let pair = format!("{one} x {other}");
        match (place(one), place(other)) {
            (Some(one), Some(other)) if one > other => broken.push(format!("{pair}: is in the wrong row")),
            (Some(one), Some(other)) if !seen.insert((one, other)) => broken.push(format!("{pair}: twice")),
            (Some(_), Some(_)) => {}
            (None, _) | (_, None) => broken.push(format!("{pair}: unknown feature")),
        }
        broken.extend(cell.problem().map(|problem| format!("{pair}: {problem}")));
        let missing = cell.tests.iter().filter(|name| !is_test(name));
        broken.extend(missing.map(|name| format!("{pair}: there is no test {name}")));
    }
    for (at, one) in table.features.iter().enumerate() {
        for (beside, other) in table.features.iter().enumerate().skip(at) {
            if !seen.contains(&(at, beside)) {
                broken.push(format!("{} x {}: missing", one.name, other.name));
            }
        }
    }
    broken
}

/// Whether the tree has a test of this name, as `cargo nextest` or `pytest` print it: `CRATE::it MODULE::NAME`, `CRATE
/// MODULE::NAME` for a test beside the code, `FILE.py::NAME`.
fn is_test(name: &str) -> bool {
    let has = |file: String, words: String| {
        let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
        text.contains(&words)
    };
    if let Some((file, test)) = name.split_once(".py::") {
        return has(format!("crates/onceward-python/tests/{file}.py"), format!("def {test}("));
    }
    let Some((binary, path)) = name.split_once(' ') else { return false };
    let folder = match binary.split_once("::") {
        Some((package, binary)) => format!("crates/{package}/tests/{binary}"),
        None => format!("crates/{binary}/src"),
    };
    let (modules, test) = path.rsplit_once("::").unwrap_or(("", path));
    let beside = modules.strip_suffix("::tests").unwrap_or(modules);
    [modules, beside].iter().any(|modules| {
        let file = format!("{folder}/{}", modules.replace("::", "/"));
        has(format!("{}.rs", file.trim_end_matches('/')), format!("fn {test}("))
    })
}

#[test]
fn every_pair_of_features_has_its_answer() {
    let text = std::fs::read_to_string(root().join("crates/onceward/pairs.toml")).unwrap();
    none(mistakes(&text, is_test), "the table of pairs");
}

/// A table of two features without a mistake.
const SOUND: &str = "
features = [{ name = 'a', is = 'A.' }, { name = 'b', is = 'B.' }]
[[pair]]
of = ['a', 'a']
never = 'There is one.'
[[pair]]
of = ['a', 'b']
answer = 'Both.'
tests = ['crate::it module::shows']
[[pair]]
of = ['b', 'b']
answer = 'Once.'
tests = ['crate::it module::is_one']
";

#[test]
fn every_mistake_in_the_table_is_named() {
    let tests = ["crate::it module::shows", "crate::it module::is_one"];
    let problems = |text: &str| mistakes(text, |name| tests.contains(&name));
    assert_eq!(problems(SOUND), [""; 0]);
    for (from, to, says) in [
        ("of = ['b', 'b']", "of = ['a', 'b']", "a x b: twice"),
        ("of = ['b', 'b']", "of = ['a', 'b']", "b x b: missing"),
        ("of = ['a', 'b']", "of = ['b', 'a']", "b x a: is in the wrong row"),
        ("of = ['a', 'b']", "of = ['a', 'c']", "a x c: unknown feature"),
        ("tests = ['crate::it module::shows']", "", "a x b: has neither tests"),
        ("tests = ['crate::it module::shows']", "never = 'No.'", "a x b: says that the two never meet"),
        ("never = 'There is one.'", "never = 'No.'\ntests = ['x']", "a x a: says that the two never meet"),
        ("answer = 'Both.'", "", "a x b: has no answer"),
        ("module::shows", "module::is_gone", "a x b: there is no test crate::it module::is_gone"),
        ("name = 'b'", "name = 'a'", "the feature a is listed twice"),
        ("answer = 'Both.'", "answr = 'Both.'", "unknown field"),
    ] {
        assert!(SOUND.contains(from), "{from}");
        let found = problems(&SOUND.replacen(from, to, 1)).join("\n");
        assert!(found.contains(says), "{from} -> {to}: {found}");
    }
}

#[test]
fn a_test_is_found_by_the_name_that_its_runner_prints() {
    for (name, is_there) in [
        ("onceward-cli::it architecture::pairs::every_mistake_in_the_table_is_named", true),
        ("onceward-cli::it architecture::pairs::no_such_test", false),
        ("onceward-cli::it architecture::every_mistake_in_the_table_is_named", false),
        ("onceward policy::trust::tests::every_setting_has_a_decision", true),
        ("onceward policy::tests::patterns", true),
        ("onceward-sim::simulation a_seed_repeats_its_run", true),
        ("test_held.py::test_coroutines", true),
        ("test_held.py::test_nothing", false),
        ("every_mistake_in_the_table_is_named", false),
    ] {
        assert_eq!(is_test(name), is_there, "{name}");
    }
}
