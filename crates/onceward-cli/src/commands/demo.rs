//! `once demo`: with real processes and real kills, duplicates without the ledger and none with it.

mod shop;

use std::process::ExitCode;

use serde::Serialize;

use crate::answer::{self, BOLD, CYAN, DIM, GREEN, RED, styled};
use crate::cli::DemoArgs;
use crate::exit::{CommandError, Ended};
use shop::{Shop, Side};

/// The charges of one scene.
#[derive(Debug, Clone, Serialize)]
struct Scene {
    scene: &'static str,
    wanted: usize,
    without: usize,
    with: usize,
    said: String,
}

#[derive(Serialize)]
struct Tally {
    scenes: Vec<Scene>,
    charges_too_many_without: usize,
    charges_too_many_with: usize,
}

type Play = fn(&Shop) -> Result<Scene, CommandError>;

pub(super) fn run(args: &DemoArgs, json: bool) -> Ended {
    let shop = Shop::open()?;
    say(
        json,
        &format!(
            "A shop charges a customer by a command ({}), and agents retry. Each scene is played twice:\n\
         once without the ledger, then with {} in front. The bank counts.\n",
            styled(CYAN, "charge ORDER AMOUNT"),
            styled(BOLD, "once run --")
        ),
    );
    let plays: [Play; 5] = [retry, crash_after, crash_before, twelve_at_once, other_inputs];
    let mut scenes = Vec::new();
    for play in plays {
        let scene = play(&shop)?;
        say(json, &in_words(&scene));
        scenes.push(scene);
    }
    let too_many = |count: fn(&Scene) -> usize| {
        scenes.iter().map(|scene| count(scene).saturating_sub(scene.wanted)).sum::<usize>()
    };
    let without = too_many(|scene| scene.without);
    let with = too_many(|scene| scene.with);
    let kept = scenes.iter().all(|scene| scene.with == scene.wanted);
    say(
        json,
        &format!(
            "charges too many: {} without the ledger, {} with it.",
            styled(RED.bold(), without),
            styled(GREEN.bold(), with)
        ),
    );
    if args.keep {
        say(json, &format!("the demo's ledger: {}", shop.keep().display()));
    }
    if json {
        answer::success(
            true,
            "noop",
            &Tally { scenes, charges_too_many_without: without, charges_too_many_with: with },
            String::new,
        );
    }
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn say(json: bool, text: &str) {
    if !json {
        answer::data(text);
    }
}

fn in_words(scene: &Scene) -> String {
    let mark = |count: usize| {
        let word = if count == 1 { "charge " } else { "charges" };
        let style = if count == scene.wanted { GREEN } else { RED };
        styled(style.bold(), format!("{count} {word}"))
    };
    format!(
        "{}\n  without  {}\n  with     {}   {}\n",
        styled(BOLD, scene.scene),
        mark(scene.without),
        mark(scene.with),
        styled(DIM, &scene.said)
    )
}

/// The answer is lost, so the agent calls again.
fn retry(shop: &Shop) -> Result<Scene, CommandError> {
    for side in Side::BOTH {
        shop.charge(side, "retry", "100", &[])?;
    }
    let without =
        shop.charge(Side::Without, "retry", "100", &[]).and_then(|_| shop.charges(Side::Without, "retry"))?;
    let second = shop.charge(Side::With, "retry", "100", &[])?;
    Ok(Scene {
        scene: "The answer is lost and the agent retries",
        wanted: 1,
        without,
        with: shop.charges(Side::With, "retry")?,
        said: format!("the retry gets the first answer again, exit {}: {}", second.exit, second.reason),
    })
}

/// The process is killed after the bank was charged and before anybody heard of it.
fn crash_after(shop: &Shop) -> Result<Scene, CommandError> {
    for side in Side::BOTH {
        shop.charge_and_die(side, "crash-after", shop::Moment::AfterTheCharge)?;
    }
    shop.charge(Side::Without, "crash-after", "100", &[])?;
    let doubt = shop.charge(Side::With, "crash-after", "100", &[])?;
    let asked = shop.charge(Side::With, "crash-after", "100", &["--probe", &shop.probe("crash-after")])?;
    Ok(Scene {
        scene: "kill -9 after the charge, before the answer",
        wanted: 1,
        without: shop.charges(Side::Without, "crash-after")?,
        with: shop.charges(Side::With, "crash-after")?,
        said: format!(
            "the retry says {} (exit {}); with a probe that asks the bank: exit {}",
            doubt.code, doubt.exit, asked.exit
        ),
    })
}

/// The process is killed before the bank was charged.
fn crash_before(shop: &Shop) -> Result<Scene, CommandError> {
    for side in Side::BOTH {
        shop.charge_and_die(side, "crash-before", shop::Moment::BeforeTheCharge)?;
    }
    shop.charge(Side::Without, "crash-before", "100", &[])?;
    let asked = shop.charge(Side::With, "crash-before", "100", &["--probe", &shop.probe("crash-before")])?;
    Ok(Scene {
        scene: "kill -9 before the charge",
        wanted: 1,
        without: shop.charges(Side::Without, "crash-before")?,
        with: shop.charges(Side::With, "crash-before")?,
        said: format!("the probe says no, so the retry charges: exit {}, nothing is lost", asked.exit),
    })
}

/// Twelve workers get the same task.
fn twelve_at_once(shop: &Shop) -> Result<Scene, CommandError> {
    let mut replays = 0;
    for side in Side::BOTH {
        let workers: Vec<_> =
            (0..12).map(|_| shop.start(side, "twelve", "100", &[])).collect::<Result<_, _>>()?;
        for worker in workers {
            replays += usize::from(Shop::wait(worker)?.replayed);
        }
    }
    Ok(Scene {
        scene: "twelve workers at once",
        wanted: 1,
        without: shop.charges(Side::Without, "twelve")?,
        with: shop.charges(Side::With, "twelve")?,
        said: format!("one charges, {replays} wait for it and get its answer"),
    })
}

/// The same key comes back with another amount.
fn other_inputs(shop: &Shop) -> Result<Scene, CommandError> {
    for side in Side::BOTH {
        shop.charge(side, "inputs", "100", &[])?;
    }
    shop.charge(Side::Without, "inputs", "1000", &[])?;
    let refused = shop.charge(Side::With, "inputs", "1000", &[])?;
    Ok(Scene {
        scene: "the same key with another amount",
        wanted: 1,
        without: shop.charges(Side::Without, "inputs")?,
        with: shop.charges(Side::With, "inputs")?,
        said: format!("{}, exit {}: {}", refused.code, refused.exit, refused.reason),
    })
}
