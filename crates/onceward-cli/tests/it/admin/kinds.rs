//! What a record is does not depend on its name or scope.

use crate::common::Bench;

#[test]
fn names_and_scopes_that_look_like_ours_are_data() {
    let bench = Bench::new();
    for (scope, name) in [
        ("default", "another key of an operation"),
        ("default", "key"),
        ("hooks~x", "x"),
        ("hooks~x", "leader"),
        ("models", "answer"),
        ("run-7", "branch"),
        ("onceward.locks", "lock"),
    ] {
        bench.once(&["run", "--scope", scope, "--name", name, "--key", "k", "--", "true"]).exits(0);
        let listed = bench.json(&["ls", "--scope", scope, "--name", name]);
        assert_eq!(listed["data"].as_array().map(Vec::len), Some(1), "{scope} {name}: {listed}");
        let report = bench.json(&["report", "--scope", scope]);
        let lines = report["data"]["by_state"]["done"].to_string();
        assert!(lines.contains(&format!("{name:?}")), "{scope} {name}: {report}");
        if scope != "default" {
            let plan = bench.json(&["undo", "--scope", scope, "--dry-run"]);
            assert!(plan.to_string().contains(&format!("{name:?}")), "{scope} {name}: {plan}");
        }
    }
    assert_eq!(bench.json(&["stats"])["data"]["operations"], 7);
}
