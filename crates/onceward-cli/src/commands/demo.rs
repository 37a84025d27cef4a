//! `once demo`: shows with real processes and real kills that there are duplicates without the ledger and none with
//! it.

mod model;
mod shop;

use std::process::ExitCode;

use serde::Serialize;

use crate::answer;
use crate::cli::DemoArgs;
use crate::exit::{CommandError, Ended};
use crate::style::{BOLD, CYAN, DIM, GREEN, RED, styled};
use model::{Asked, Gateway, Model};
use shop::{Shop, Side};

/// What is counted in a scene.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Counted {
    Charges,
    /// Charges that stand at the end.
    Standing,
    Answers,
}

/// What one scene counted.
#[derive(Debug, Clone, Serialize)]
struct Scene {
    scene: &'static str,
    counted: Counted,
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
    answers_too_many_without: usize,
    answers_too_many_with: usize,
}

type Play = fn(&Shop) -> Result<Scene, CommandError>;

pub(super) fn run(args: &DemoArgs, json: bool) -> Ended {
    let shop = Shop::open()?;
    let mut scenes = Vec::new();
    if !args.llm {
        say(
            json,
            &format!(
                "A shop charges a customer with a command ({}), and agents retry. Each scene runs twice:\n\
             once without the ledger, then with {} in front. The bank counts the charges.\n",
                styled(CYAN, "charge ORDER AMOUNT"),
                styled(BOLD, "once run --")
            ),
        );
        let plays: [Play; 6] = [retry, crash_after, crash_before, twelve_at_once, other_inputs, taken_back];
        for play in plays {
            let scene = play(&shop)?;
            say(json, &in_words(&scene));
            scenes.push(scene);
        }
    }
    say(
        json,
        &format!(
            "An agent asks a model, and its SDK gives up before the answer is ready. Once it asks the model itself,\n\
             then through {}. The model answers differently each time, and bills each answer.\n",
            styled(BOLD, "once serve")
        ),
    );
    let scene = impatient(&shop)?;
    say(json, &in_words(&scene));
    scenes.push(scene);
    let too_many = |counted: Counted, count: fn(&Scene) -> usize| {
        let scenes = scenes.iter().filter(|scene| scene.counted == counted);
        scenes.map(|scene| count(scene).saturating_sub(scene.wanted)).sum::<usize>()
    };
    let duplicates =
        |counted| (too_many(counted, |scene| scene.without), too_many(counted, |scene| scene.with));
    let (charges, answers) = (duplicates(Counted::Charges), duplicates(Counted::Answers));
    let kept = scenes.iter().all(|scene| scene.with == scene.wanted);
    let told = [(!args.llm, "charges", charges), (true, "answers of the model", answers)];
    for (_, what, (without, with)) in told.into_iter().filter(|(is_told, ..)| *is_told) {
        say(
            json,
            &format!(
                "duplicate {what}: {} without the ledger, {} with it.",
                styled(RED.bold(), without),
                styled(GREEN.bold(), with)
            ),
        );
    }
    if args.keep {
        say(json, &format!("the demo's ledger: {}", shop.keep().display()));
    }
    if json {
        let tally = Tally {
            scenes,
            charges_too_many_without: charges.0,
            charges_too_many_with: charges.1,
            answers_too_many_without: answers.0,
            answers_too_many_with: answers.1,
        };
        answer::success(true, "noop", &tally, String::new);
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
        let word = match (scene.counted, count) {
            (Counted::Charges, 1) => "charge ",
            (Counted::Charges, _) => "charges",
            (Counted::Standing, 1) => "charge  stands",
            (Counted::Standing, _) => "charges stand",
            (Counted::Answers, 1) => "answer ",
            (Counted::Answers, _) => "answers",
        };
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
        counted: Counted::Charges,
        wanted: 1,
        without,
        with: shop.charges(Side::With, "retry")?,
        said: format!("the retry gets the first answer again, exit {}: {}", second.exit, second.reason),
    })
}

/// The process is killed after the charge and before it could report it.
fn crash_after(shop: &Shop) -> Result<Scene, CommandError> {
    for side in Side::BOTH {
        shop.charge_and_die(side, "crash-after", shop::Moment::AfterTheCharge)?;
    }
    shop.charge(Side::Without, "crash-after", "100", &[])?;
    let doubt = shop.charge(Side::With, "crash-after", "100", &[])?;
    let asked = shop.charge(Side::With, "crash-after", "100", &["--probe", &shop.probe("crash-after")])?;
    Ok(Scene {
        scene: "kill -9 after the charge, before the answer",
        counted: Counted::Charges,
        wanted: 1,
        without: shop.charges(Side::Without, "crash-after")?,
        with: shop.charges(Side::With, "crash-after")?,
        said: format!(
            "the retry answers {} (exit {}); with a probe that asks the bank: exit {}",
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
        counted: Counted::Charges,
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
        scene: "Twelve workers at once",
        counted: Counted::Charges,
        wanted: 1,
        without: shop.charges(Side::Without, "twelve")?,
        with: shop.charges(Side::With, "twelve")?,
        said: format!("one charges, {replays} wait for it and get its answer"),
    })
}

/// The same key is used with another amount.
fn other_inputs(shop: &Shop) -> Result<Scene, CommandError> {
    for side in Side::BOTH {
        shop.charge(side, "inputs", "100", &[])?;
    }
    shop.charge(Side::Without, "inputs", "1000", &[])?;
    let refused = shop.charge(Side::With, "inputs", "1000", &[])?;
    Ok(Scene {
        scene: "The same key with another amount",
        counted: Counted::Charges,
        wanted: 1,
        without: shop.charges(Side::Without, "inputs")?,
        with: shop.charges(Side::With, "inputs")?,
        said: format!("{}, exit {}: {}", refused.code, refused.exit, refused.reason),
    })
}

/// The person stops a run half way, and wants back what it did.
fn taken_back(shop: &Shop) -> Result<Scene, CommandError> {
    let refund = shop.refund();
    let options = ["--scope", "trip", "--undo", &refund];
    let sent = ["flight", "hotel"];
    for side in Side::BOTH {
        for order in sent {
            shop.charge(side, order, "100", &options)?;
        }
        shop.charge(side, "guide", "100", &["--scope", "trip", "--hold", "approve"])?;
    }
    shop.stop("trip")?;
    let mut late = "";
    for side in Side::BOTH {
        let car = shop.charge(side, "car", "100", &options)?;
        late = if car.code == "STOPPED" { "STOPPED" } else { late };
    }
    let undone = shop.undo("trip")?;
    let all = sent.iter().chain(&["guide", "car"]);
    let standing = |side| all.clone().map(|order| shop.charges(side, order)).sum::<Result<usize, _>>();
    Ok(Scene {
        scene: "The person stops a run of bookings half way",
        counted: Counted::Standing,
        wanted: 0,
        without: standing(Side::Without)?,
        with: standing(Side::With)?,
        said: format!(
            "sent: {}; held, so never sent: guide; car answers {late} (exit 4); once undo takes back {}",
            sent.join(", "),
            undone.join(", then ")
        ),
    })
}

/// The client gives up before the model has answered, closes its connection, and asks again.
fn impatient(shop: &Shop) -> Result<Scene, CommandError> {
    let ask_twice = |url: &str| {
        model::ask(url, model::IMPATIENCE)?;
        match model::ask(url, model::PATIENCE)? {
            Asked::Answered(answer) => Ok(answer),
            Asked::TimedOut => Err(CommandError::Outside("the model did not answer".to_owned())),
        }
    };
    let without = Model::start()?;
    let second = ask_twice(&without.url())?;
    let with = Model::start()?;
    let gateway = Gateway::start(shop, &with)?;
    let first = ask_twice(&gateway.url())?;
    let (generated, tokens) = (without.generated(), model::TOKENS);
    Ok(Scene {
        scene: "The SDK times out and asks the model again",
        counted: Counted::Answers,
        wanted: 1,
        without: generated,
        with: with.generated(),
        said: format!(
            "the retry gets {first:?}, the answer of the first request, for {tokens} tokens; without, it got \
             {second:?} for {}",
            generated * tokens
        ),
    })
}
