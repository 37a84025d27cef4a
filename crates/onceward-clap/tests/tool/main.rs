//! Small tools that do things right, later, or wrong. The tool under test is this program itself: with `ACT_AS` it is the
//! tool, without it the tests.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and says what it did")]

/// Names functions as tests.
macro_rules! tests {
    ($($test:ident),* $(,)?) => { pub(crate) const TESTS: &[(&str, fn())] = &[$((stringify!($test), $test)),*]; };
}

mod definition;
mod list;
mod nested;
mod noise;
mod runs;
mod tickets;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Ok(version) = std::env::var("ACT_AS") {
        return list::act_as(&version);
    }
    // Programs that list or filter tests call it in this way.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let all = [definition::TESTS, nested::TESTS, noise::TESTS, tickets::TESTS].concat();
    for (name, test) in
        all.iter().filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|word| name.contains(word)))
    {
        test();
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}
