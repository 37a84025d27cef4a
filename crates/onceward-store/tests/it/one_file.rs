//! One ledger, whatever path leads to it, and one file that contains all of it.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward::{
    Blocking, Change, Filter, Inherit, Ledger, Liveness, Operation, Owner, State, Store, StoreError,
    WriteMode,
};
use onceward_store::sqlite::{SqliteOptions, SqliteStore};
use onceward_store::{Backend, Overwrite};

fn open(path: impl AsRef<Path>) -> Result<Arc<SqliteStore>, StoreError> {
    SqliteStore::open(SqliteOptions::new(path.as_ref()))
}

fn ledger(path: impl AsRef<Path>) -> Blocking {
    Ledger::new(open(path).unwrap()).blocking()
}

/// Whether the operation with that key ran and was not replayed.
fn ran(ledger: &Blocking, key: &str) -> bool {
    let receipt = ledger.run(Operation::new("pay").key(key), |attempt| Ok(attempt.dispatch()?.created(&key)));
    !receipt.unwrap().replayed()
}

fn refusal(path: impl AsRef<Path>) -> String {
    open(path).err().map(|error| error.to_string()).unwrap_or_default()
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

fn liveness(store: &SqliteStore, token: u64) -> Liveness {
    pollster::block_on(store.liveness(&Owner { token, lease_until_ms: 0 })).unwrap()
}

#[test]
fn the_file_alone_is_the_ledger_when_it_is_not_open() {
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (folder.path().join("agent.db"), folder.path().join("copy.db"));
    {
        let (one, other) = (ledger(&here), ledger(&here));
        for key in ["a", "b", "c"] {
            assert!(ran(&one, key));
        }
        assert!(ran(&other, "d"));
        one.list(&Filter { limit: 10, ..Filter::default() }).unwrap();
        drop(one);
        assert!(ran(&other, "e"), "the remaining store continues");
    }
    std::fs::copy(&here, &there).unwrap();
    let copy = ledger(&there);
    for key in ["a", "b", "c", "d", "e"] {
        assert!(!ran(&copy, key), "{key} runs again on the copy");
    }
}

#[test]
fn a_replay_causes_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.db");
    assert!(ran(&ledger(&path), "a"));
    let written = std::fs::metadata(&path).unwrap().modified().unwrap();
    assert!(!ran(&ledger(&path), "a"));
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), written, "the file was not written");
}

#[test]
fn several_paths_lead_to_one_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().join("real");
    std::fs::create_dir(&real).unwrap();
    symlink(&real, folder.path().join("linked")).unwrap();
    symlink(real.join("agent.db"), folder.path().join("to-file.db")).unwrap();
    symlink("to-file.db", folder.path().join("to-link.db")).unwrap();
    // The first one leads to a file that does not exist yet.
    let spellings =
        ["to-link.db", "to-file.db", "linked/agent.db", "real/../linked/./agent.db", "real/agent.db"];
    let stores: Vec<_> =
        spellings.iter().map(|spelling| open(folder.path().join(spelling)).unwrap()).collect();
    let hold = stores[0].hold(Inherit::No).unwrap();
    for (spelling, store) in spellings.iter().zip(&stores) {
        assert_eq!(store.path(), real.canonicalize().unwrap().join("agent.db"), "{spelling}");
        assert_eq!(liveness(store, hold.token()), Liveness::Alive, "{spelling}");
        assert!(!folder.path().join(format!("{spelling}-live")).exists() || spelling.ends_with("agent.db"));
    }
}

#[test]
fn a_second_name_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, second) = (folder.path().join("agent.db"), folder.path().join("second.db"));
    assert!(ran(&ledger(&path), "a"));
    std::fs::hard_link(&path, &second).unwrap();
    for name in [&path, &second] {
        assert!(refusal(name).contains("has 2 names (hard links)"), "{}", refusal(name));
    }
    std::fs::remove_file(&second).unwrap();
    assert!(!ran(&ledger(&path), "a"));
}

#[test]
fn a_ledger_in_use_is_not_opened_with_another_live_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.db");
    let store = open(&path).unwrap();
    let hold = store.hold(Inherit::No).unwrap();
    let live = beside(&path, "-live");
    std::fs::rename(&live, folder.path().join("away")).unwrap();
    assert!(refusal(&path).contains("in use with another"), "{}", refusal(&path));
    assert!(hold.note_dispatch(onceward::Dispatch::NotYet).is_ok());
    std::fs::rename(folder.path().join("away"), &live).unwrap();
    assert_eq!(liveness(&open(&path).unwrap(), hold.token()), Liveness::Alive);
    // The lock outlives the store.
    drop(store);
    std::fs::remove_file(&live).unwrap();
    assert!(refusal(&path).contains("in use with another"), "{}", refusal(&path));
    drop(hold);
    open(&path).unwrap();
}

#[test]
fn anything_but_a_regular_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let begun = Instant::now();
    for (path, word) in
        [(pipe.as_path(), "named pipe"), (Path::new("/dev/null"), "device"), (folder.path(), "folder")]
    {
        assert!(refusal(path).contains(word), "{}", refusal(path));
    }
    let path = folder.path().join("agent.db");
    std::fs::rename(&pipe, beside(&path, "-live")).unwrap();
    assert!(refusal(&path).contains("named pipe"), "{}", refusal(&path));
    symlink("loop", folder.path().join("loop")).unwrap();
    assert!(refusal(folder.path().join("loop")).contains("loop"), "{}", refusal(folder.path().join("loop")));
    assert!(begun.elapsed() < Duration::from_secs(60), "opening does not wait for a pipe");
}

#[test]
fn a_backup_is_consistent_during_writes() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("agent.db"), folder.path().join("copy.db"));
    let store = open(&path).unwrap();
    let one = Ledger::new(Arc::<SqliteStore>::clone(&store)).blocking();
    for key in 0..50 {
        assert!(ran(&one, &key.to_string()));
    }
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (50..150).for_each(|key| assert!(ran(&one, &key.to_string()))));
        let bytes = store.backup(&copy, Overwrite::No).unwrap();
        assert_eq!(bytes, std::fs::metadata(&copy).unwrap().len());
        writer.join().unwrap();
    });
    assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().contains("part")), "{names:?}");

    let copied = ledger(&copy);
    for key in 0..50 {
        assert!(!ran(&copied, &key.to_string()), "{key} is not in the backup");
    }
    drop(copied);
    let refused = store.backup(&copy, Overwrite::No).err().unwrap().to_string();
    assert!(refused.contains("exists"), "{refused}");
    let other = folder.path().join("other.db");
    std::fs::write(&other, "an old backup").unwrap();
    store.backup(&other, Overwrite::Yes).unwrap();
    assert!(!ran(&ledger(&other), "149"));
    let refused = store.backup(&path, Overwrite::Yes).err().unwrap().to_string();
    assert!(refused.contains("is the ledger itself"), "{refused}");
}

#[test]
fn a_backup_does_not_replace_a_ledger_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (folder.path().join("agent.db"), folder.path().join("other.db"));
    let (store, other) = (open(&here).unwrap(), ledger(&there));
    assert!(ran(&other, "a"));
    let refused = store.backup(&there, Overwrite::Yes).err().unwrap().to_string();
    assert!(refused.contains("may be a ledger in use"), "{refused}");
}

/// Writes many records at once, all due.
fn fill(store: &SqliteStore, many: usize) {
    let changes = (0..many).map(|number| {
        let intent = Operation::new("pay").key(number.to_string()).intent().unwrap();
        let record = onceward::transition::stage(&intent, 1_000);
        let record = onceward::Record { state: State::Expired, due_ms: Some(2_000), ..record };
        Change::Swap { expected: None, record }
    });
    pollster::block_on(store.apply(changes.collect(), WriteMode::Blocking)).unwrap();
}

#[test]
fn compacting_shrinks_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path().join("agent.db")).unwrap();
    fill(&store, 5_000);
    let ledger = Ledger::new(Arc::<SqliteStore>::clone(&store)).blocking();
    let swept = ledger.admin().sweep(|_| {}).unwrap();
    assert_eq!(swept.deleted, 5_000);
    let compacted = store.compact().unwrap().unwrap();
    assert!(compacted.after_bytes * 4 < compacted.before_bytes, "{compacted:?}");
    assert!(ran(&ledger, "a") && !ran(&ledger, "a"));
}

#[test]
fn keys_and_ids_are_found_by_index() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.db");
    let store = open(&path).unwrap();
    fill(&store, 100);
    let shell = rusqlite::Connection::open(&path).unwrap();
    for (question, index) in [
        ("slot >= 1 AND slot <= 2 AND substr(id, 1, 5) = 'op_ab'", "operation_slot"),
        ("origin = 'given' AND key = 'a'", "operation_given"),
        ("scope <> 'default' AND scope = 's' AND name = 'n'", "operation_scope"),
    ] {
        let text = format!(
            "EXPLAIN QUERY PLAN SELECT * FROM operations WHERE 1 AND {question} ORDER BY +row DESC LIMIT 9"
        );
        let plan: String = shell.query_row(&text, [], |row| row.get(3)).unwrap();
        assert!(plan.contains(index), "{question}: {plan}");
    }
}
