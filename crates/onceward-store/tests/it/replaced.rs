//! A ledger whose files were changed from outside is detected, and nothing runs. Files of other programs are left
//! alone.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use onceward::{Blocking, Code, Done, Fence, IfMissing, Inherit, Ledger, Operation, Store, StoreError};
use onceward_store::sqlite::{SqliteOptions, SqliteStore};
use onceward_store::{Backend, Overwrite, StoreUrl};
use rusqlite::Connection;

/// A folder with a ledger in it, and a counter of effects.
struct Fixture {
    folder: tempfile::TempDir,
    effects: AtomicU32,
}

impl Fixture {
    fn new() -> Self {
        Self { folder: onceward_testkit::scratch(), effects: AtomicU32::new(0) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn database(&self) -> PathBuf {
        self.path("once.db")
    }

    fn open(&self) -> Result<Arc<SqliteStore>, StoreError> {
        SqliteStore::open(SqliteOptions::new(self.database()))
    }

    fn ledger(&self) -> Blocking {
        Ledger::new(self.open().unwrap()).blocking()
    }

    fn effects(&self) -> u32 {
        self.effects.load(Ordering::Relaxed)
    }

    /// Has an effect, once.
    fn pay(&self, ledger: &Blocking, key: &str) -> Result<(), onceward::Error> {
        let paid = ledger.run(Operation::new("pay").key(key), |attempt| {
            let dispatched = attempt.dispatch()?;
            self.effects.fetch_add(1, Ordering::Relaxed);
            Ok::<Done, onceward::Failure>(dispatched.created(&key))
        });
        paid.map(drop)
    }

    /// Two states of a ledger: a backup and a plain copy of the first, and the second as the current one.
    fn with_history() -> Self {
        let fixture = Self::new();
        let store = fixture.open().unwrap();
        let ledger = Ledger::new(Arc::<SqliteStore>::clone(&store)).blocking();
        fixture.pay(&ledger, "a").unwrap();
        store.backup(&fixture.path("backup.db"), Overwrite::No).unwrap();
        drop((store, ledger));
        std::fs::copy(fixture.database(), fixture.path("copy.db")).unwrap();
        let ledger = fixture.ledger();
        fixture.pay(&ledger, "b").unwrap();
        drop(ledger);
        let other = SqliteStore::open(SqliteOptions::new(fixture.path("other.db"))).unwrap();
        fixture.pay(&Ledger::new(other).blocking(), "c").unwrap();
        fixture
    }

    fn remove_beside(&self) {
        for ending in ["-live", "-wal", "-shm"] {
            // It need not exist.
            drop(std::fs::remove_file(self.path(&format!("once.db{ending}"))));
        }
    }
}

/// A change to the database: its description, and a function that makes it.
type Way = (&'static str, fn(&Fixture));

/// The changes to the database of a ledger.
const WAYS: [Way; 8] = [
    ("removed", |fixture| std::fs::remove_file(fixture.database()).unwrap()),
    ("removed and made anew", |fixture| {
        std::fs::remove_file(fixture.database()).unwrap();
        std::fs::write(fixture.database(), "").unwrap();
    }),
    ("emptied", |fixture| std::fs::write(fixture.database(), "").unwrap()),
    ("overwritten", |fixture| std::fs::write(fixture.database(), vec![7; 40_960]).unwrap()),
    ("another ledger moved there", |fixture| {
        std::fs::rename(fixture.path("other.db"), fixture.database()).unwrap();
    }),
    ("a backup moved there", |fixture| {
        std::fs::rename(fixture.path("backup.db"), fixture.database()).unwrap();
    }),
    ("a backup copied over it", |fixture| {
        std::fs::copy(fixture.path("backup.db"), fixture.database()).unwrap();
    }),
    ("an older copy copied over it", |fixture| {
        std::fs::copy(fixture.path("copy.db"), fixture.database()).unwrap();
    }),
];

fn assert_replaced<T>(answer: Result<T, onceward::Error>, way: &str) {
    let refused = answer.err().unwrap_or_else(|| panic!("{way}: it was not refused"));
    assert_eq!(refused.code(), Code::LedgerReplaced, "{way}: {refused}");
}

#[test]
fn a_changed_database_under_an_open_ledger_runs_nothing() {
    for (way, change) in WAYS {
        let fixture = Fixture::with_history();
        let ledger = fixture.ledger();
        let before = fixture.effects();
        change(&fixture);
        for key in ["b", "d", "e"] {
            // Finished and cached results may be replayed, and nothing else.
            if let Err(refused) = fixture.pay(&ledger, key) {
                assert_eq!(refused.code(), Code::LedgerReplaced, "{way}: {refused}");
            } else {
                assert_eq!(key, "b", "{way}");
            }
        }
        assert_replaced(fixture.open().map(drop).map_err(Into::into), way);
        assert_eq!(fixture.effects(), before, "{way}");
    }
}

#[test]
fn a_log_is_never_copied_into_a_file_that_replaced_the_ledger() {
    for name in ["backup.db", "copy.db"] {
        let fixture = Fixture::with_history();
        let ledger = fixture.ledger();
        fixture.pay(&ledger, "d").unwrap();
        std::fs::copy(fixture.path(name), fixture.database()).unwrap();
        drop(ledger);
        assert_eq!(std::fs::read(fixture.database()).unwrap(), std::fs::read(fixture.path(name)).unwrap());
    }
}

#[test]
fn a_changed_database_is_detected_by_the_next_process() {
    for (way, change) in WAYS {
        let fixture = Fixture::with_history();
        change(&fixture);
        let left = std::fs::read(fixture.database()).ok();
        let refused = fixture.open().err().unwrap_or_else(|| panic!("{way}: it was opened"));
        assert!(matches!(refused, StoreError::Replaced { .. }), "{way}: {refused}");
        for word in ["once.db-live", "once.db-wal", "once restored --at TIME"] {
            assert!(refused.to_string().contains(word), "{way}: {refused}");
        }
        assert_eq!(std::fs::read(fixture.database()).ok(), left, "{way}: the file was changed");
    }
}

#[test]
fn the_instructions_in_the_error_work_for_starting_over_and_for_restoring() {
    let fixture = Fixture::with_history();
    std::fs::remove_file(fixture.database()).unwrap();
    fixture.remove_beside();
    let before = fixture.effects();
    fixture.pay(&fixture.ledger(), "b").unwrap();
    assert_eq!(fixture.effects(), before + 1);

    for name in ["backup.db", "copy.db"] {
        let fixture = Fixture::with_history();
        let name_before = fixture.open().unwrap().identity().name.clone();
        std::fs::copy(fixture.path(name), fixture.database()).unwrap();
        fixture.remove_beside();
        let store = fixture.open().unwrap();
        assert_eq!(store.identity().name, name_before);
        let fence = Fence { lost_from_ms: 1, restored_ms: 2, until_ms: 3 };
        pollster::block_on(store.set_identity(&store.identity().restored(fence, 0))).unwrap();
        drop(store);
        let restored = fixture.ledger();
        fixture.pay(&restored, "a").unwrap();
        fixture.pay(&restored, "d").unwrap();
        drop(restored);
        assert_eq!(fixture.open().unwrap().identity().epoch, 2);
    }
}

#[test]
fn a_log_of_another_state_is_not_applied_to_a_backup() {
    let fixture = Fixture::with_history();
    std::fs::copy(fixture.path("backup.db"), fixture.database()).unwrap();
    std::fs::remove_file(fixture.path("once.db-live")).unwrap();
    assert!(std::fs::metadata(fixture.path("once.db-wal")).unwrap().len() > 0);
    let refused = fixture.open().err().unwrap();
    assert!(refused.to_string().contains("-wal file belongs to another state"), "{refused}");
}

#[test]
fn all_stores_opened_at_once_on_a_new_ledger_detect_an_older_one() {
    for round in 0..10 {
        let fixture = Fixture::new();
        let options = SqliteOptions { checkpoint_pages: 1, ..SqliteOptions::new(fixture.database()) };
        let open = || Ledger::new(SqliteStore::open(options.clone()).unwrap()).blocking();
        let ledgers: Vec<Blocking> = std::thread::scope(|scope| {
            let opening: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
            opening.into_iter().map(|one| one.join().unwrap()).collect()
        });
        fixture.pay(&ledgers[0], "a").unwrap();
        std::fs::copy(fixture.database(), fixture.path("older.db")).unwrap();
        for (number, ledger) in ledgers.iter().enumerate() {
            fixture.pay(ledger, &format!("b-{number}")).unwrap();
        }
        let effects = fixture.effects();
        std::fs::copy(fixture.path("older.db"), fixture.database()).unwrap();
        for ledger in &ledgers {
            assert_replaced(fixture.pay(ledger, "new"), &format!("round {round}"));
        }
        assert_eq!(fixture.effects(), effects);
    }
}

/// What a killed process has committed is in its log. The log is removed, or an older one is put in its place.
#[test]
fn a_log_that_is_gone_or_older_is_noticed() {
    for older in [false, true] {
        let fixture = Fixture::new();
        let ledger = fixture.ledger();
        fixture.pay(&ledger, "a").unwrap();
        let moved = onceward_testkit::scratch();
        let take = |name: &str| std::fs::copy(fixture.path(name), moved.path().join(name)).unwrap();
        take("once.db");
        if older {
            take("once.db-wal");
        }
        fixture.pay(&ledger, "b").unwrap();
        take("once.db-live");
        let store = SqliteStore::open(SqliteOptions::new(moved.path().join("once.db"))).unwrap();
        let other = Ledger::new(store).blocking();
        assert_replaced(fixture.pay(&other, "b"), if older { "an older log" } else { "no log" });
        assert_eq!(fixture.effects(), 2);
    }
}

/// A process keeps writing to a log that was deleted, and its writes are lost when it ends.
#[test]
fn a_log_that_is_removed_or_replaced_under_an_open_ledger_stops_it() {
    for replaced in [false, true] {
        let fixture = Fixture::new();
        let (ledger, other) = (fixture.ledger(), fixture.ledger());
        fixture.pay(&ledger, "a").unwrap();
        let log = fixture.path("once.db-wal");
        let copy = std::fs::read(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        if replaced {
            std::fs::write(&log, copy).unwrap();
        }
        for ledger in [&ledger, &other] {
            assert_replaced(fixture.pay(ledger, "b"), "its -wal file was moved or removed while in use");
        }
        assert_eq!(fixture.effects(), 1);
    }
}

#[test]
fn the_newest_operation_may_be_forgotten() {
    let fixture = Fixture::new();
    let ledger = fixture.ledger();
    fixture.pay(&ledger, "a").unwrap();
    fixture.pay(&ledger, "b").unwrap();
    let record = |key: &str| ledger.intent(Operation::new("pay").key(key)).unwrap().id;
    for key in ["b", "a"] {
        ledger.admin().forget(&record(key)).unwrap();
        fixture.pay(&fixture.ledger(), key).unwrap();
    }
    assert_eq!(fixture.effects(), 4);
}

/// The log of a ledger is copied into an older state of its file. Each of the two alone is valid.
#[test]
fn a_mixture_of_two_states_is_refused() {
    let fixture = Fixture::new();
    let ledger = fixture.ledger();
    let checkpoint = || {
        let shell = Connection::open(fixture.database()).unwrap();
        shell.query_row("PRAGMA wal_checkpoint(FULL)", [], |_| Ok(())).unwrap();
    };
    fixture.pay(&ledger, "a").unwrap();
    checkpoint();
    std::fs::copy(fixture.database(), fixture.path("older.db")).unwrap();
    for key in ["b", "c", "d"] {
        fixture.pay(&ledger, key).unwrap();
        checkpoint();
    }
    fixture.pay(&ledger, "e").unwrap();
    std::fs::copy(fixture.path("older.db"), fixture.database()).unwrap();
    checkpoint();
    assert_replaced(fixture.pay(&ledger, "f"), "a mixture");
    assert_eq!(fixture.effects(), 5);
}

#[test]
fn concurrent_checkpoints_are_not_mistaken_for_a_replacement() {
    let fixture = Fixture::new();
    let options = SqliteOptions { checkpoint_pages: 8, ..SqliteOptions::new(fixture.database()) };
    let ledgers: Vec<Blocking> =
        (0..3).map(|_| Ledger::new(SqliteStore::open(options.clone()).unwrap()).blocking()).collect();
    std::thread::scope(|scope| {
        for (number, ledger) in ledgers.iter().enumerate() {
            scope.spawn(move || {
                for key in 0..150 {
                    let operation = Operation::new("pay").key(format!("{number}-{key}"));
                    let receipt = ledger.run(operation, |attempt| Ok(attempt.dispatch()?.created(&key)));
                    receipt.unwrap();
                }
            });
        }
    });
    drop(ledgers);
    let shell = Connection::open(fixture.database()).unwrap();
    let count: i64 = shell.query_row("SELECT count FROM ledger", [], |row| row.get(0)).unwrap();
    assert!(count > 10, "the file was written {count} times");
    drop(shell);
    fixture.ledger();
}

#[test]
fn a_removed_or_replaced_live_file_stops_all_stores() {
    for way in ["removed", "emptied anew", "another's"] {
        let fixture = Fixture::with_history();
        let ledger = fixture.ledger();
        let (live, before) = (fixture.path("once.db-live"), fixture.effects());
        std::fs::remove_file(&live).unwrap();
        match way {
            "removed" => {}
            "emptied anew" => std::fs::write(&live, "").unwrap(),
            _ => std::fs::rename(fixture.path("other.db-live"), &live).unwrap(),
        }
        assert_replaced(fixture.pay(&ledger, "d"), way);
        assert_replaced(fixture.open().map(drop).map_err(Into::into), way);
        assert_eq!(fixture.effects(), before, "{way}");
    }
}

#[test]
fn a_live_file_that_is_not_ours_is_left_alone() {
    let fixture = Fixture::new();
    let (live, precious) = (fixture.path("once.db-live"), fixture.path("precious"));
    let text = "data of another program\n".repeat(1_000);
    std::fs::write(&precious, &text).unwrap();

    symlink("precious", &live).unwrap();
    let refused = fixture.open().err().unwrap().to_string();
    assert!(refused.contains("is a symbolic link"), "{refused}");
    std::fs::remove_file(&live).unwrap();

    std::fs::hard_link(&precious, &live).unwrap();
    assert!(fixture.open().is_err());
    std::fs::remove_file(&live).unwrap();

    std::fs::copy(&precious, &live).unwrap();
    let refused = fixture.open().err().unwrap().to_string();
    assert!(refused.contains("belongs to another program"), "{refused}");
    assert_eq!(std::fs::read_to_string(&live).unwrap(), text);
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), text);
    assert!(!fixture.database().exists(), "nothing is created next to it");
}

#[test]
fn a_world_writable_ledger_is_refused_unless_allowed() {
    let fixture = Fixture::new();
    fixture.pay(&fixture.ledger(), "a").unwrap();
    let database = fixture.database();
    std::fs::set_permissions(&database, PermissionsExt::from_mode(0o666)).unwrap();
    let refused = fixture.open().err().unwrap().to_string();
    assert!(refused.contains("writable by everyone") && refused.contains("owner=any"), "{refused}");
    let options = SqliteOptions::parse(&format!("{}?owner=any", database.display())).unwrap();
    let health = SqliteStore::open(options).unwrap().health().unwrap();
    assert!(health.iter().any(|finding| finding.what == "owner"), "{health:?}");
}

#[test]
fn a_command_inherits_no_write_access_to_the_files() {
    let fixture = Fixture::new();
    let store = fixture.open().unwrap();
    let hold = store.hold(Inherit::Children).unwrap();
    let script = "cd /proc/$$/fd; for fd in *; do echo \"$(readlink $fd) $(sed -n 's/flags:\\s*//p' ../fdinfo/$fd)\"; done";
    let listed = Command::new("sh").args(["-c", script]).output().unwrap();
    drop(hold);
    let listed = String::from_utf8(listed.stdout).unwrap();
    let ours: Vec<(&str, &str)> = listed
        .lines()
        .filter(|line| line.contains("once.db"))
        .filter_map(|line| line.rsplit_once(' '))
        .collect();
    assert!(ours.iter().any(|(path, _)| path.ends_with("-live")), "{listed}");
    for (path, flags) in ours {
        let mode = u32::from_str_radix(flags, 8).unwrap() & 3;
        assert_eq!(mode, 0, "{path} is not open for reading only: {flags}");
    }
}

#[test]
fn a_url_can_forbid_creating_a_ledger() {
    let fixture = Fixture::new();
    let url = format!("sqlite:{}?create=no", fixture.database().display());
    let refused = StoreUrl::parse(&url).unwrap().open(IfMissing::Create).err().unwrap();
    assert!(
        matches!(refused, StoreError::Missing { .. }) && refused.to_string().contains("create=no"),
        "{refused}"
    );
    assert_eq!(std::fs::read_dir(fixture.folder.path()).unwrap().count(), 0, "something was created");
    drop(fixture.ledger());
    StoreUrl::parse(&url).unwrap().open(IfMissing::Create).unwrap();
    assert!(StoreUrl::parse("sqlite:x.db?create=perhaps").is_err());
}

#[test]
fn new_ledgers_have_a_secret_and_unique_names() {
    let (one, other) = (Fixture::new(), Fixture::new());
    let (one, other) = (one.open().unwrap(), other.open().unwrap());
    assert_ne!(one.identity().name, other.identity().name);
    assert!(one.identity().secret.is_some() && one.identity().secret != other.identity().secret);
    let health = one.health().unwrap();
    let found = health.iter().find(|finding| finding.what == "identity").unwrap();
    assert_eq!(found.found, format!("{}, epoch 1", one.identity().name));
}
