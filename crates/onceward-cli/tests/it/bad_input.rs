//! Wrong input of every kind: a clear error, the contract's exit code, and nothing changed on disk.

mod command_line;
mod inputs;
mod ledgers;
mod operations;
mod policies;

use crate::common::Bench;

/// Runs `once` in an empty folder, where it must be refused: see [`refused_in`].
#[track_caller]
fn refused(exit: i32, args: &[&str]) -> String {
    refused_in(&Bench::new(), exit, args)
}

/// Runs `once` twice, the second time with `--json`, and returns the text for people.
///
/// Both times it must end with that exit code, leave every file as it was and make none; with `--json` it must say one
/// JSON object and nothing else.
#[track_caller]
fn refused_in(bench: &Bench, exit: i32, args: &[&str]) -> String {
    let before = bench.listing();
    let said = bench.once(args).exits(exit);
    assert_eq!(said.out(), "", "stdout is for data");
    unchanged(bench, &before);

    let as_json: Vec<&str> = std::iter::once("--json").chain(args.iter().copied()).collect();
    let spoken = bench.once(&as_json).exits(exit);
    assert_eq!(spoken.err(), "", "with --json nothing is said beside the answer");
    let answer = spoken.json();
    assert_eq!(answer["ok"], false);
    let error = &answer["error"];
    assert_eq!(error["code"], code_of(&said.err(), exit), "the same code to people and to programs");
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{answer}");
    if args.first() != Some(&"run") {
        let claims = [&answer["happened"], &answer["ran"], &error["happened"]];
        assert!(
            claims.iter().all(|claim| claim.is_null()),
            "no call was made, so nothing is claimed: {answer}"
        );
    }
    if error["retryable"] == true {
        assert_eq!(error["happened"], "no", "retryable implies that nothing happened");
    }
    unchanged(bench, &before);
    without_folder(bench, &said.err())
}

/// What was said without the path of the test's folder: a ledger is named by its whole path.
fn without_folder(bench: &Bench, said: &str) -> String {
    let here = std::fs::canonicalize(bench.path("")).unwrap();
    said.replace(&format!("{}/", here.display()), "")
}

/// The code in the text for people: `once: CODE …`. The parser of the command line prints none, which means wrong input.
fn code_of(said: &str, exit: i32) -> String {
    match said.strip_prefix("once: ").and_then(|rest| rest.split(' ').next()) {
        Some(code) => code.to_owned(),
        None => {
            assert_eq!(exit, 2, "only a command line that is not understood has no code: {said}");
            "INVALID_INPUT".to_owned()
        }
    }
}

#[track_caller]
fn unchanged(bench: &Bench, before: &crate::common::Listing) {
    let after = bench.listing();
    let names = |listing: &crate::common::Listing| listing.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(before), names(&after), "files came or went");
    for (path, file) in before {
        assert_eq!(Some(file), after.get(path), "{} was changed", path.display());
    }
}
