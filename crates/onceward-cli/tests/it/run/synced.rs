//! Nothing runs before its intent is on disk, and nothing is reported before its outcome is.

use crate::common::Bench;

#[test]
fn the_intent_is_synced_before_the_command_and_the_outcome_before_the_answer() {
    let bench = Bench::new();
    // The ledger is created before, so that only this operation is traced.
    bench.once(&["run", "--key", "before", "--", "true"]).exits(0);
    let calls = "trace=fdatasync,fsync,execve,exit_group";
    let line = format!("strace -f -y -o trace -e {calls} once run --key a -- /bin/echo done");
    bench.shell(&line).exits(0);
    let trace = bench.read("trace");
    let lines: Vec<&str> = trace.lines().collect();
    let synced = |lines: &[&str]| {
        lines.iter().any(|line| line.contains("once.db-wal>") && line.trim_end().ends_with("= 0"))
    };
    let starts = lines.iter().position(|line| line.contains(r#"["/bin/echo", "done"]"#)).expect("it starts");
    let ends = starts + lines[starts..].iter().position(|line| line.contains("exit_group")).expect("it ends");
    assert!(synced(&lines[..starts]), "the intent: {trace}");
    assert!(synced(&lines[ends..]), "the outcome: {trace}");
}
