//! Every mutating command, found by its manifest, scores 3 of 3; and what it costs to write one.

use onceward_clap::score::{Bench, score};

use crate::fixture::{Fixture, look, program};

#[test]
fn every_mutating_command_scores_three() {
    let mut shops = Vec::new();
    let scores = score(program(), |_| {
        let shop = Fixture::new();
        let (folder, database) = (shop.folder.path().to_owned(), shop.file("shop.db"));
        let ledger = shop.file("ledger.db");
        shops.push(shop);
        let environment = vec![("SHOP_LEDGER".to_owned(), format!("sqlite:{}", ledger.display()))];
        Bench { folder, environment, ledger, look: Box::new(move || look(&database)) }
    })
    .unwrap();
    let told: Vec<String> = scores.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "3 create-order",
            "3 delete-user",
            "3 deploy",
            "3 import-orders",
            "3 increment-counter",
            "3 send-email"
        ]
    );
}

#[test]
fn the_manifest_names_every_command_of_the_source() {
    let source = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/commands")).unwrap();
    let mut written: Vec<String> = source
        .map(|file| file.unwrap().path().file_stem().unwrap().to_string_lossy().replace('_', "-"))
        .collect();
    written.sort();
    let manifest = Fixture::new().run("manifest").json();
    let commands = manifest["data"]["commands"].as_object().unwrap();
    let own = commands.iter().filter(|(_, entry)| entry["builtin"] != true);
    assert_eq!(own.map(|(name, _)| name.clone()).collect::<Vec<_>>(), written);
}

#[test]
fn create_order_costs_forty_lines_with_its_plan_and_its_probe() {
    let source = include_str!("../../src/commands/create_order.rs");
    let lines = source.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines <= 40, "{lines} lines");
    assert!(source.contains("fn plan(") && source.contains("fn apply("));
}
