//! A tool's ledger is encrypted at rest by the variables that every surface knows.

use crate::fixture::{Fixture, count, run, told};

const ORDER: &str = "create-order --customer ada-canary --amount 100 --scope run-7";

#[test]
fn an_order_is_sealed_and_without_the_key_it_is_not_made_again() {
    let shop = Fixture::new();
    let key = onceward_store::seal::new_key().unwrap();
    let sealed = |line: &str| run(shop.with("ONCE_ENCRYPTION_KEY", &key), line);
    assert_eq!(sealed(ORDER).told(), told("created", 0));
    let stored = std::fs::read(shop.file("ledger.db")).unwrap();
    assert!(!stored.windows(10).any(|part| part == b"ada-canary"));
    let replayed = sealed(ORDER);
    assert_eq!((replayed.told(), &replayed.json()["data"]["id"]), (told("noop", 0), &1.into()));
    let refused = shop.run(ORDER);
    assert_eq!((refused.exit, refused.code().as_str()), (4, "RESULT_UNAVAILABLE"));
    assert_eq!(refused.json()["error"]["happened"], "yes");
    assert_eq!(count(&shop, "orders"), 1);
}
