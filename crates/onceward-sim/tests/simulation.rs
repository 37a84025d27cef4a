//! Thousands of seeded runs. A failure names its seed, which reproduces it.

use onceward_sim::sim::{Environment, Summary, clients, events, run};

/// Enough to hit every fault many times, in seconds. `torture` does as many as there is time for.
const RUNS: u64 = 1_000;
/// Some of the runs from here on have a second effect after a long sleep, which must be reported.
const FIRST: u64 = 1_000;

#[expect(clippy::print_stdout, reason = "`--nocapture` shows how much was simulated")]
fn all(environment: Environment) -> Summary {
    let mut sum = Summary::default();
    for seed in FIRST..FIRST + RUNS {
        let summary = run(seed, environment).unwrap_or_else(|broken| panic!("{broken}"));
        sum.effects += summary.effects;
        sum.crashes += summary.crashes;
        sum.stops += summary.stops;
        sum.faults += summary.faults;
        sum.settled += summary.settled;
        sum.cancelled += summary.cancelled;
        sum.barriers += summary.barriers;
        sum.released += summary.released;
        sum.undone += summary.undone;
        sum.expired += summary.expired;
        sum.in_doubt += summary.in_doubt;
        sum.repeated += summary.repeated;
        sum.writes += summary.writes;
        sum.simulated_ms += summary.simulated_ms;
    }
    let hours = sum.simulated_ms / 3_600_000;
    println!("{environment:?}: {RUNS} runs, {hours} simulated hours, {sum:?}");
    // A simulation without faults and effects would prove nothing.
    assert!(sum.effects > RUNS && sum.crashes > RUNS / 2 && sum.stops > RUNS / 2, "{sum:?}");
    assert!(sum.faults > RUNS && sum.in_doubt > RUNS / 20, "{sum:?}");
    assert!(sum.settled > RUNS / 20 && sum.expired > RUNS / 2 && sum.cancelled > RUNS / 20, "{sum:?}");
    assert!(sum.undone > RUNS / 20 && sum.released > RUNS / 20, "{sum:?}");
    assert!(sum.barriers > RUNS / 20, "{sum:?}");
    assert!(sum.writes > 10 * RUNS && hours > 20, "{sum:?}");
    sum
}

#[test]
fn nothing_happens_twice_where_the_kernel_knows_who_is_alive() {
    assert_eq!(all(Environment::Kernel).repeated, 0);
}

#[test]
fn nothing_happens_twice_where_only_leases_do() {
    assert_eq!(all(Environment::Leases).repeated, 0);
}

#[test]
fn what_happens_twice_after_a_long_sleep_is_reported() {
    let sum = all(Environment::LongSleep);
    assert!(sum.repeated > 0, "nothing happened twice, so nothing was tested: {sum:?}");
}

/// The simulations in turn, with as many seeds as `ONCE_SEEDS` says. `tests/planted/run` finds planted faults with it.
#[test]
fn seeds_of_the_soak() {
    let seeds = std::env::var("ONCE_SEEDS").map_or(20, |seeds| seeds.parse().expect("a number of seeds"));
    for seed in 0..seeds {
        for environment in [Environment::Kernel, Environment::Leases, Environment::LongSleep] {
            let panic = |broken| panic!("{broken}");
            run(seed, environment).map(drop).unwrap_or_else(panic);
            clients::run(seed, environment).map(drop).unwrap_or_else(panic);
            events::run(seed, environment).map(drop).unwrap_or_else(panic);
        }
    }
}

/// Runs that once violated a rule.
#[test]
fn a_run_that_found_a_fault_finds_it_no_more() {
    // The owner of a probed operation slept past its quarantine, sent its request and reported a doubt.
    run(29_077, Environment::LongSleep).unwrap_or_else(|broken| panic!("{broken}"));
}

/// Clients that want an action again, and persons who refuse and settle.
#[test]
fn no_action_happens_more_often_than_it_was_wanted() {
    for environment in [Environment::Kernel, Environment::Leases, Environment::LongSleep] {
        let mut sum = clients::Summary::default();
        for seed in FIRST..FIRST + RUNS {
            let one = clients::run(seed, environment).unwrap_or_else(|broken| panic!("{broken}"));
            sum = sum.plus(&one);
        }
        println!("{environment:?}: {RUNS} runs of clients, {sum:?}");
        assert!(sum.wanted > 5 * RUNS && sum.effects > RUNS && sum.repeats > RUNS / 2, "{sum:?}");
        assert!(sum.refused > RUNS / 5 && sum.settled > RUNS / 20 && sum.replays > RUNS / 2, "{sum:?}");
        assert!(sum.bound > RUNS / 100 && sum.crashes > RUNS / 2, "{sum:?}");
    }
}

/// Servers that crash, handlers that fail, and a person who retries, refuses and settles.
#[test]
fn what_was_acknowledged_ends_as_handled_refused_or_a_dead_letter() {
    for environment in [Environment::Kernel, Environment::Leases, Environment::LongSleep] {
        let mut sum = events::Summary::default();
        for seed in FIRST..FIRST + RUNS / 2 {
            let one = events::run(seed, environment).unwrap_or_else(|broken| panic!("{broken}"));
            sum = sum.plus(&one);
        }
        println!("{environment:?}: {} runs of servers, {sum:?}", RUNS / 2);
        assert!(sum.acknowledged > RUNS && sum.effects > RUNS && sum.crashes > RUNS / 4, "{sum:?}");
        assert!(sum.again > RUNS / 20 && sum.ended.iter().all(|ended| *ended > 0), "{sum:?}");
    }
}

#[test]
fn a_seed_repeats_its_run() {
    for environment in [Environment::Kernel, Environment::Leases, Environment::LongSleep] {
        assert_eq!(run(17, environment), run(17, environment));
        assert_eq!(clients::run(17, environment), clients::run(17, environment));
        assert_eq!(events::run(17, environment), events::run(17, environment));
    }
}
