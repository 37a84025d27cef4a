//! Results are sealed at rest on every back end, and a missing key never causes a second run.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onceward::{
    Attempt, Blocking, Code, Error, Failure, Filter, Happened, Ledger, MemoryStore, Operation, Outcome,
    Record, State, Store, Swap, Verdict, Verification, Word, conformance,
};
use onceward_store::seal::new_key;
use onceward_store::seal::{Keys, Sealed};
use onceward_store::sqlite::{SqliteOptions, SqliteStore};
use onceward_store::{Backend, IfMissing, StoreUrl, SystemClock};
use onceward_testkit::{Postgres, Redis};

fn keys() -> Keys {
    Keys::parse(&new_key().unwrap()).unwrap()
}

fn open(url: &str, keys: Option<&Keys>) -> Arc<dyn Backend> {
    StoreUrl::parse(url).unwrap().open_with(IfMissing::Create, keys.cloned()).unwrap()
}

fn ledger(url: &str, keys: Option<&Keys>) -> Blocking {
    Ledger::new(open(url, keys)).blocking()
}

/// A ledger in a folder that is removed after the test.
struct File {
    folder: tempfile::TempDir,
    url: String,
}

impl File {
    fn new() -> Self {
        let folder = onceward_testkit::scratch();
        let url = format!("sqlite:{}", folder.path().join("once.db").display());
        Self { folder, url }
    }

    fn ledger(&self, keys: Option<&Keys>) -> Blocking {
        ledger(&self.url, keys)
    }

    fn sql(&self, change: &str) {
        let connection = rusqlite::Connection::open(self.folder.path().join("once.db")).unwrap();
        connection.execute_batch(change).unwrap();
    }
}

fn pay(key: &str) -> Operation {
    Operation::new("pay").key(key).input(serde_json::json!({"amount": 1}))
}

/// Runs the operation with that result and body.
fn done(ledger: &Blocking, key: &str, secret: &str) {
    let act = |attempt: Attempt| {
        Ok(attempt.dispatch()?.created(&serde_json::json!({"token": secret})).body(secret.as_bytes()))
    };
    ledger.run(pay(key), act).unwrap();
}

/// Calls the operation again, which must not run it.
fn again(ledger: &Blocking, key: &str) -> Result<(Option<String>, Option<Vec<u8>>), Error> {
    let receipt = ledger.run(pay(key), |_| -> Result<_, Failure> { panic!("{key} runs again") })?;
    Ok((receipt.data().map(str::to_owned), receipt.body().map(<[u8]>::to_vec)))
}

fn result(secret: &str) -> (Option<String>, Option<Vec<u8>>) {
    (Some(format!("{{\"token\":\"{secret}\"}}")), Some(secret.as_bytes().to_vec()))
}

fn record(ledger: &Blocking, key: &str) -> Record {
    let found = ledger.admin().lookup(key, None, 1).unwrap();
    let (record, _) = ledger.find(&found[0].record.id).unwrap();
    Record::clone(&record)
}

/// Puts the secret into every part of a record that can contain one.
fn fill(ledger: &Blocking, store: &dyn Store, secret: &str) {
    done(ledger, "done", secret);
    let doubtful = |_: Attempt| -> Result<_, Failure> { Err(Failure::in_doubt(secret)) };
    ledger.run(pay("doubt"), doubtful).unwrap_err();
    let doubt = record(ledger, "doubt");
    let word = Word::person("ada").note(format!("seen: {secret}"));
    ledger.admin().settle(&doubt.id, Verdict::Failed, word, Outcome::because(None)).unwrap();
    // A second attempt records the reason of the first.
    ledger.run(pay("doubt"), doubtful).unwrap_err();
    let mut full = record(ledger, "done");
    let expected = full.version;
    full.version += 1;
    let late = full.outcome.clone();
    let detail = &mut full.detail;
    detail.late = late;
    detail.cancelled_by = Some(Box::new(Word::person("ada").note(secret.to_owned())));
    for text in [&mut detail.probe, &mut detail.verify, &mut detail.command, &mut detail.folder] {
        *text = Some(secret.to_owned());
    }
    let swapped =
        ledger.wait_for(store.swap(Some(expected), full.clone(), onceward::WriteMode::Blocking)).unwrap();
    assert!(matches!(swapped, Swap::Written(_)));
    let stored = record(ledger, "done");
    assert_eq!((&stored.detail, &stored.outcome), (&full.detail, &full.outcome));
}

/// The files below a folder that contain these bytes.
fn holding(folder: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(holding(&path, bytes));
        } else if let Ok(content) = std::fs::read(&path)
            && content.windows(bytes.len()).any(|window| window == bytes)
        {
            found.push(path);
        }
    }
    found
}

/// With keys the secret is in no file. Without keys it is, which shows that the search works.
fn canary(url: &str, folder: &Path, flush: impl Fn()) {
    for (secret, keys) in [("canary-sealed-0a1b2c3d4e", Some(keys())), ("canary-in-clear-5f6a7b8c", None)] {
        let url = match keys {
            // A separate ledger without encryption: a sealed record of this one must not be overwritten.
            None if url.starts_with("sqlite:") => url.replace("once.db", "clear.db"),
            _ => url.to_owned(),
        };
        let store = open(&url, keys.as_ref());
        let ledger = Ledger::new(store.clone()).blocking();
        if keys.is_none() && !url.starts_with("sqlite:") {
            done(&ledger, "clear", secret);
        } else {
            fill(&ledger, &*store, secret);
        }
        flush();
        let found = holding(folder, secret.as_bytes());
        assert_eq!(found.is_empty(), keys.is_some(), "{secret}: {found:?}");
        drop((ledger, store));
        let found = holding(folder, secret.as_bytes());
        assert_eq!(found.is_empty(), keys.is_some(), "{secret}, closed: {found:?}");
    }
}

#[test]
fn a_secret_is_in_no_file_of_sqlite() {
    let file = File::new();
    canary(&file.url, file.folder.path(), || {});
}

#[test]
fn a_secret_is_in_no_file_of_postgres() {
    let server = Postgres::start();
    canary(&server.fresh(), server.folder(), || drop(server.sql("CHECKPOINT")));
}

#[test]
fn a_secret_is_in_no_file_of_redis() {
    let server = Redis::start();
    canary(&server.fresh(), server.folder(), || {});
}

#[test]
fn a_sealed_store_conforms() {
    let keys = keys();
    let folders = std::cell::RefCell::new(Vec::new());
    let sqlite = || -> Arc<dyn Store> {
        let folder = onceward_testkit::scratch();
        let store = SqliteStore::open(SqliteOptions::new(folder.path().join("once.db"))).unwrap();
        folders.borrow_mut().push(folder);
        Arc::new(Sealed::around(store, keys.clone()))
    };
    let memory = || -> Arc<dyn Store> {
        Arc::new(Sealed::around(Arc::new(MemoryStore::new(SystemClock)), keys.clone()))
    };
    for group in conformance::groups() {
        conformance::run_only(&memory, group).assert_clean();
    }
    for group in conformance::groups().filter(|group| *group != "identity") {
        conformance::run_only(&sqlite, group).assert_clean();
    }
}

#[test]
fn a_sealed_store_on_a_server_conforms() {
    let keys = keys();
    // A time limit that a busy machine does not reach.
    let on = |url: String| -> Arc<dyn Store> { open(&format!("{url}&timeout=60s"), Some(&keys)) };
    for group in ["load and swap", "load_cached", "apply", "list", "due and counts", "results", "ledger"] {
        conformance::run_only(&|| on(Postgres::shared().fresh()), group).assert_clean();
        conformance::run_only(&|| on(Redis::shared().fresh()), group).assert_clean();
    }
}

#[test]
fn a_retry_gets_the_result_and_without_the_key_nothing_runs() {
    let file = File::new();
    let keys = keys();
    done(&file.ledger(Some(&keys)), "k1", "s3cret");
    assert_eq!(again(&file.ledger(Some(&keys)), "k1").unwrap(), result("s3cret"));
    let id = keys.ids().next().unwrap();
    for other in [None, Some(self::keys())] {
        let ledger = file.ledger(other.as_ref());
        let error = again(&ledger, "k1").unwrap_err();
        assert_eq!((error.code(), error.happened()), (Code::ResultUnavailable, Some(Happened::Yes)));
        assert_eq!((error.retryable(), error.ran().as_bool()), (false, false));
        assert!(error.to_string().contains(id), "{error}");
        // Reading works, and sealed values are named.
        let listed = ledger.list(&Filter { limit: 9, ..Filter::default() }).unwrap();
        let shown = listed[0].0.record.readable();
        assert_eq!((listed[0].1, shown.outcome.as_ref().unwrap().unavailable), (State::Done, true));
    }
    assert_eq!(again(&file.ledger(Some(&keys)), "k1").unwrap(), result("s3cret"));
}

#[test]
fn a_value_that_cannot_be_opened_is_written_back_unchanged() {
    let file = File::new();
    let (keys, others) = (keys(), keys());
    done(&file.ledger(Some(&keys)), "k1", "s3cret");
    for other in [None, Some(&others)] {
        let ledger = file.ledger(other);
        let id = record(&ledger, "k1").id;
        ledger.attempts().verified(&id, Verification::Pending, None).unwrap();
        ledger.attempts().verified(&id, Verification::Confirmed, None).unwrap();
    }
    let ledger = file.ledger(Some(&keys));
    assert_eq!(record(&ledger, "k1").outcome.unwrap().verified, Some(Verification::Confirmed));
    assert_eq!(again(&ledger, "k1").unwrap(), result("s3cret"));
}

#[test]
fn an_operation_in_doubt_is_settled_without_the_key() {
    let file = File::new();
    let keys = keys();
    let fail = |_: Attempt| -> Result<_, Failure> { Err(Failure::in_doubt("no answer from s3cret")) };
    file.ledger(Some(&keys)).run(pay("k1"), fail).unwrap_err();
    let ledger = file.ledger(None);
    let error = again(&ledger, "k1").unwrap_err();
    assert_eq!(error.code(), Code::InDoubt);
    assert!(!error.to_string().contains("sealed:1:"), "{error}");
    let id = record(&ledger, "k1").id;
    ledger.admin().settle(&id, Verdict::Failed, Word::person("ada"), Outcome::because(None)).unwrap();
    done(&ledger, "k1", "second");
    let seen = record(&file.ledger(Some(&keys)), "k1");
    assert_eq!(seen.state, State::Done);
}

#[test]
fn keys_are_rotated() {
    let file = File::new();
    let (old, new) = (new_key().unwrap(), new_key().unwrap());
    let only = |text: &str| Keys::parse(text).unwrap();
    done(&file.ledger(Some(&only(&old))), "k1", "first");
    let both = only(&format!("# newest first\n{new}\n\n{old}  # until December\n"));
    assert_eq!(again(&file.ledger(Some(&both)), "k1").unwrap(), result("first"));
    done(&file.ledger(Some(&both)), "k2", "second");
    assert_eq!(again(&file.ledger(Some(&only(&new))), "k2").unwrap(), result("second"));
    assert_eq!(again(&file.ledger(Some(&only(&new))), "k1").unwrap_err().code(), Code::ResultUnavailable);
    // A record that changes is sealed with the newest key.
    let ledger = file.ledger(Some(&both));
    let id = record(&ledger, "k1").id;
    let verified = ledger.ledger().attempts().verified(&id, onceward::Verification::Confirmed, None);
    ledger.wait_for(verified).unwrap();
    assert_eq!(again(&file.ledger(Some(&only(&new))), "k1").unwrap(), result("first"));
}

#[test]
fn a_moved_or_changed_value_cannot_be_opened() {
    let file = File::new();
    let keys = keys();
    done(&file.ledger(Some(&keys)), "k1", "first");
    done(&file.ledger(Some(&keys)), "k2", "second");
    file.sql(
        "UPDATE operations SET outcome = (SELECT outcome FROM operations WHERE key = 'k1') WHERE key = 'k2'",
    );
    let error = again(&file.ledger(Some(&keys)), "k2").unwrap_err();
    assert_eq!(error.code(), Code::ResultUnavailable);
    done(&file.ledger(Some(&keys)), "k3", "third");
    file.sql(
        "UPDATE body SET bytes = CAST(substr(bytes, 1, length(bytes) - 1) || x'00' AS BLOB) \
         WHERE row = (SELECT row FROM operations WHERE key = 'k3')",
    );
    assert_eq!(again(&file.ledger(Some(&keys)), "k3").unwrap_err().code(), Code::ResultUnavailable);
    assert_eq!(again(&file.ledger(Some(&keys)), "k1").unwrap(), result("first"));
}

#[test]
fn a_result_that_only_looks_sealed_is_stored_like_any_other() {
    let file = File::new();
    let keys = keys();
    let ledger = file.ledger(Some(&keys));
    let fake = format!("sealed:1:{}:AAAA", keys.ids().next().unwrap());
    let act = |attempt: Attempt| Ok(attempt.dispatch()?.created(&fake).body(fake.as_bytes()));
    ledger.run(pay("k1"), act).unwrap();
    // The ledger cannot distinguish the opened text from a sealed one, so the replay is refused. The stored value is
    // correct.
    assert_eq!(record(&ledger, "k1").outcome.unwrap().body.as_deref(), Some(fake.as_bytes()));
}

#[test]
fn a_clear_text_ledger_is_sealed_as_its_records_change() {
    let file = File::new();
    done(&file.ledger(None), "k1", "first");
    let keys = keys();
    assert_eq!(again(&file.ledger(Some(&keys)), "k1").unwrap(), result("first"));
    done(&file.ledger(Some(&keys)), "k2", "second");
    assert_eq!(again(&file.ledger(None), "k1").unwrap(), result("first"));
}

#[test]
fn a_key_file_must_be_private_and_contain_keys() {
    let folder = onceward_testkit::scratch();
    let file = folder.path().join("once.key");
    let write = |text: &str, mode: u32| {
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let refused = || Keys::read(&file).unwrap_err().to_string();
    assert!(refused().contains("cannot be read"));
    let key = new_key().unwrap();
    write(&key, 0o640);
    assert!(refused().contains("chmod 600"), "{}", refused());
    write("# nothing\n", 0o600);
    assert!(refused().contains("it contains no key"), "{}", refused());
    write(&format!("{key}\nhunter2\n"), 0o600);
    assert!(refused().contains("line 2") && !refused().contains("hunter2"), "{}", refused());
    write(&key, 0o400);
    assert_eq!(Keys::read(&file).unwrap().ids().count(), 1);
    let bytes = [0xab; 32];
    let hex = data_encoding::HEXUPPER.encode(&bytes);
    let base64 = data_encoding::BASE64.encode(&bytes);
    let id = |text: &str| Keys::parse(text).unwrap().ids().next().unwrap().to_owned();
    assert_eq!(id(&hex), id(&base64));
    assert!(Keys::parse("abcd").is_err());
    assert_eq!(format!("{:?}", Keys::parse(&hex).unwrap()), format!("[\"{}\"]", id(&hex)));
}
