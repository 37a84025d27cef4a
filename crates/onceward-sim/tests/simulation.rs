//! Thousands of seeded runs. A failure names its seed, and the seed repeats it.

use onceward_sim::sim::{Kind, Summary, run};

/// Enough to meet every fault many times, and done in seconds.
const RUNS: u64 = 2_000;

fn all(kind: Kind) -> Summary {
    let mut sum = Summary::default();
    for seed in 0..RUNS {
        let summary = run(seed, kind).unwrap_or_else(|broken| panic!("{broken}"));
        sum.effects += summary.effects;
        sum.crashes += summary.crashes;
        sum.stops += summary.stops;
        sum.faults += summary.faults;
        sum.settled += summary.settled;
        sum.expired += summary.expired;
        sum.in_doubt += summary.in_doubt;
        sum.repeated += summary.repeated;
    }
    // A simulation in which nothing happens proves nothing.
    assert!(sum.effects > RUNS && sum.crashes > RUNS / 2 && sum.stops > RUNS / 2, "{sum:?}");
    assert!(sum.faults > RUNS && sum.in_doubt > RUNS / 20, "{sum:?}");
    assert!(sum.settled > RUNS / 20 && sum.expired > RUNS / 2, "{sum:?}");
    sum
}

#[test]
fn nothing_happens_twice_where_the_kernel_tells_who_lives() {
    assert_eq!(all(Kind::Kernel).repeated, 0);
}

#[test]
fn nothing_happens_twice_where_only_leases_do() {
    assert_eq!(all(Kind::Leases).repeated, 0);
}

#[test]
fn what_happens_twice_after_a_long_sleep_is_told() {
    let sum = all(Kind::LongSleep);
    assert!(sum.repeated > 0, "nothing happened twice, so nothing was tested: {sum:?}");
}

#[test]
fn a_seed_repeats_its_run() {
    for kind in [Kind::Kernel, Kind::Leases, Kind::LongSleep] {
        assert_eq!(run(17, kind), run(17, kind));
    }
}
