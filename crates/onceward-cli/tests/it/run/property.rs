//! Random calls: different actions have different identities, and the same action always the same one.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::common::{Bench, Said};

/// What makes a call without a key the action that it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Action {
    folder: &'static str,
    argv: Vec<&'static str>,
    stdin: Option<&'static str>,
    variable: Option<&'static str>,
    input: Option<&'static str>,
    occurrence: Option<&'static str>,
}

/// Words that are easily mixed up: joined, quoted, empty, in other forms of the same letters.
const WORDS: [&str; 16] = [
    "a",
    "b",
    "a b",
    "ab",
    "",
    " ",
    "-",
    "--",
    "é",
    "e\u{301}",
    "\"a\"",
    "'a'",
    "{\"hex\":\"61\"}",
    "1",
    "1.0",
    "null",
];
const FOLDERS: [&str; 4] = ["x", "y", "x/y", "x y"];
const BODIES: [&str; 8] = ["one", "one\n", "\n", "1", "1.0", "[1]", "{\"a\":1}", "sha256:00"];
const INPUTS: [&str; 4] = ["{\"a\":1}", "{\"a\":\"1\"}", "[1]", "1"];

/// Numbers that are the same in every run with the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len())]
    }

    fn maybe<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        (self.roll(3) == 0).then(|| self.one(of))
    }
}

impl Action {
    fn random(dice: &mut Dice) -> Self {
        let words = 1 + dice.roll(3);
        Self {
            folder: dice.one(&FOLDERS),
            argv: std::iter::once("./run").chain((0..words).map(|_| dice.one(&WORDS))).collect(),
            stdin: dice.maybe(&BODIES),
            variable: dice.maybe(&WORDS),
            input: dice.maybe(&INPUTS),
            occurrence: dice.maybe(&["1", "2", "label"]),
        }
    }

    /// The identity that `once` gives it. The second spelling is another way to ask for the same.
    fn identity(&self, bench: &Bench, other_spelling: bool) -> String {
        let mut args = vec!["--json", "key"];
        let spaced = self.input.map(|input| input.replace(':', " : "));
        if let Some(input) = &spaced {
            args.extend(["--input", if other_spelling { input } else { self.input.unwrap() }]);
        }
        args.extend(self.variable.iter().flat_map(|_| ["--env", "VARIABLE"]));
        args.extend(self.occurrence.iter().flat_map(|occurrence| ["--occurrence", occurrence]));
        args.push("--");
        args.extend(&self.argv);
        let mut command = bench.command(&args);
        let folder = if other_spelling { format!("link/{}", self.folder) } else { self.folder.to_owned() };
        command.current_dir(bench.path(&folder)).env("ONCE_LEDGER", bench.ledger());
        // A variable that was not named is not part of the action.
        command.env("OTHER", if other_spelling { "1" } else { "2" });
        command.envs(self.variable.map(|value| ("VARIABLE", value)));
        if let Some(body) = self.stdin {
            bench.write("body", body);
            command.stdin(std::fs::File::open(bench.path("body")).unwrap());
        }
        let answer: Value = Said::from(command.output().unwrap()).exits(0).json();
        answer["data"]["operation"].as_str().unwrap().to_owned()
    }

    /// Occurrence 1 is what is meant where none is named.
    fn meaning(&self) -> Self {
        Self { occurrence: self.occurrence.filter(|occurrence| *occurrence != "1"), ..self.clone() }
    }
}

#[test]
fn different_actions_have_different_identities_and_the_same_action_has_one() {
    let bench = Bench::new();
    for folder in FOLDERS {
        std::fs::create_dir_all(bench.path(folder)).unwrap();
    }
    symlink(bench.path(""), bench.path("link")).unwrap();
    let mut dice = Dice(0x1dea_5eed);
    let mut known: BTreeMap<String, Action> = BTreeMap::new();
    for round in 0..120 {
        // Every other action differs from one that is known in a single place.
        let mut action = Action::random(&mut dice);
        if round % 2 == 1 {
            let other = action.clone();
            action = known.values().nth(dice.roll(known.len())).unwrap().clone();
            match dice.roll(5) {
                0 => action.folder = other.folder,
                1 => action.argv = other.argv,
                2 => action.stdin = other.stdin,
                3 => action.variable = other.variable,
                _ => action.occurrence = other.occurrence,
            }
        }
        let id = action.identity(&bench, false);
        assert_eq!(id, action.identity(&bench, true), "the same action: {action:?}");
        let meaning = action.meaning();
        let twin = known.iter().find(|(_, known)| known.meaning() == meaning).map(|(id, _)| id.clone());
        match (known.get(&id), twin) {
            (Some(other), _) => assert_eq!(other.meaning(), meaning, "two actions share {id}"),
            (None, Some(twin)) => assert_eq!(id, twin, "one action has two identities: {action:?}"),
            (None, None) => {}
        }
        known.insert(id, action);
    }
    assert!(known.len() > 90, "only {} different actions", known.len());
}
