use onceward::Dispatch;

use super::*;

/// A process id that is never this process's.
const ANOTHER_PROCESS: u32 = 0;

fn live() -> (tempfile::TempDir, Arc<Live>) {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let options = SqliteOptions::new(folder.path().join("once.db"));
    File::create(&options.path).expect("an empty database");
    let live = Arc::new(Live::open(&options).expect("a new ledger can be opened"));
    (folder, live)
}

/// The value that a forked process has of a lock of its parent's.
fn forked_copy(live: &Arc<Live>, token: u64) -> SharedLock {
    SharedLock { token, live: Arc::clone(live), process: ANOTHER_PROCESS }
}

#[test]
fn a_forked_process_that_drops_a_lock_does_not_release_it() {
    let (_folder, live) = live();
    let hold = Live::hold(&live, Inherit::No).expect("a lock");
    drop(forked_copy(&live, hold.token()));
    assert_eq!(live.liveness(hold.token()).expect("liveness"), Liveness::Alive);
    let other = Live::open(&SqliteOptions::new(live.database.clone())).expect("another process's view");
    assert_eq!(other.liveness(hold.token()).expect("liveness"), Liveness::Alive);
}

#[test]
fn after_a_restart_time_goes_on_where_it_was() {
    const DAYS_MS: i64 = 2 * 24 * 60 * 60 * 1_000;
    let (_folder, live) = live();
    let here = Machine::now();
    live.start_clock_on(&here, None).expect("a clock");
    let at_ms = live.clock_mark().at_ms;
    let restarted = Machine { boot: "77".to_owned(), since_boot_ms: 9_000, wall_ms: here.wall_ms + DAYS_MS };
    live.start_clock_on(&restarted, Some(&live.clock_mark())).expect("a clock");
    let now_ms = restarted.since_boot_ms + live.offset_ms.load(Ordering::Relaxed);
    assert!((at_ms..at_ms + 10_000).contains(&now_ms), "{now_ms} is not {at_ms}");
    assert_eq!(live.trust(), ClockTrust::Pending);
}

#[test]
fn a_forked_process_cannot_write_notes() {
    let (_folder, live) = live();
    let hold = Live::hold(&live, Inherit::No).expect("a lock");
    let token = hold.token();
    hold.note_dispatch(Dispatch::NotYet).expect("the owner writes");
    let refused = forked_copy(&live, token).note_dispatch(Dispatch::Begun);
    assert!(refused.is_err_and(|error| error.to_string().contains("forked")));
    drop(hold);
    assert_eq!(live.liveness(token).expect("liveness"), Liveness::NeverDispatched);

    let _file = live.open_again(Lock::Shared).expect("the file");
    let inherited = InheritedLock { token, live: Arc::clone(&live), _file, process: ANOTHER_PROCESS };
    assert!(inherited.note_dispatch(Dispatch::Begun).is_err());
}

#[test]
fn every_change_to_finished_records_has_a_counter_of_its_own() {
    let (_folder, live) = live();
    live.start_clock(None).expect("a clock, and with it a file of its full size");
    let other = Live::open(&SqliteOptions::new(live.database.clone())).expect("another process's view");
    let begin = |live: &Live| live.begin_finished_change().expect("the file can be written");
    let before = live.epoch().expect("nothing is being changed");
    let change = begin(&live);
    assert_eq!((live.epoch(), other.epoch()), (None, None), "nothing is served from caches now");
    let (own, after) = live.end_finished_change(&change);
    assert_eq!((own, other.epoch()), (Some(before), Some(after)));
    assert!(after > before);

    // Another process begins after the commit of this one, and before this one has ended its change.
    let (first, second) = (begin(&live), begin(&other));
    let (own, first) = live.end_finished_change(&first);
    assert_eq!((own, live.epoch()), (None, None), "the other one is still changing records");
    let (own, second) = other.end_finished_change(&second);
    assert_eq!((own, live.epoch()), (None, Some(second)), "and it did not know what was changed before");
    assert!(second > first && first > after);

    // A process that died in between.
    let dead = begin(&live);
    let (own, third) = other.end_finished_change(&begin(&other));
    assert_eq!((own, live.epoch()), (None, Some(third)));
    assert!(third > 2 * dead.number);
}
