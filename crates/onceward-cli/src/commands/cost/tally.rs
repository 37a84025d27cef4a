//! Adds up what model calls used. Its size does not depend on how many there are.

use std::collections::BTreeMap;

use onceward::{Record, State, Usage};
use serde::{Serialize, Serializer};

use super::super::usage::{self, Role};
use super::prices::{Money, Price, Prices};

/// How many models are listed. Their names come from requests and answers.
const MOST_MODELS: usize = 1_000;
/// The name of all models beyond that.
const OTHERS: &str = "(other models)";

/// The layers that ask for attempts, from the outside to the inside.
pub(super) const LAYERS: [&str; 4] = ["caller", "sdk", "retry", "gateway"];

/// What some attempts used.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Sum {
    pub(super) attempts: u64,
    /// How many of them have numbers that were estimated.
    pub(super) estimated_attempts: u64,
    pub(super) input: u64,
    pub(super) cached: u64,
    pub(super) output: u64,
    /// What the tokens with a price cost.
    #[serde(rename = "usd", serialize_with = "dollars")]
    pub(super) money: Money,
    /// The tokens that have no price.
    pub(super) unpriced_tokens: u64,
}

fn dollars<S: Serializer>(money: &Money, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(money.dollars())
}

impl Sum {
    fn add(&mut self, usage: &Usage, cost: Option<Money>) {
        self.attempts += 1;
        self.estimated_attempts += u64::from(usage.estimated);
        self.input = self.input.saturating_add(usage.input);
        self.cached = self.cached.saturating_add(usage.cached);
        self.output = self.output.saturating_add(usage.output);
        match cost {
            Some(cost) => self.money += cost,
            None => self.unpriced_tokens = self.unpriced_tokens.saturating_add(usage::total(usage)),
        }
    }

    pub(super) fn tokens(&self) -> u64 {
        self.input.saturating_add(self.cached).saturating_add(self.output)
    }
}

/// A model, with its price.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct ModelSum {
    #[serde(flatten)]
    pub(super) sum: Sum,
    /// `null` if there is none.
    pub(super) price: Option<Price>,
}

/// What model calls used.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Tally {
    pub(super) calls: u64,
    pub(super) attempts: u64,
    /// How many ended without saying what they used: refused, failed early, or interrupted.
    pub(super) unknown_attempts: u64,
    pub(super) running_attempts: u64,
    pub(super) total: Sum,
    pub(super) answers: Sum,
    pub(super) wasted: Sum,
    pub(super) by_model: BTreeMap<String, ModelSum>,
    pub(super) by_layer: BTreeMap<String, Sum>,
}

impl Tally {
    /// Adds the attempts of an operation, if it is a model call.
    pub(super) fn add(&mut self, record: &Record, state: State, prices: &Prices) {
        let attempts = usage::attempts(record, state);
        if attempts.is_empty() {
            return;
        }
        self.calls += 1;
        for attempt in attempts {
            self.attempts += 1;
            match (&attempt.usage, attempt.role) {
                (Some(usage), role) => self.count(usage, role, prices),
                (None, Role::Running) => self.running_attempts += 1,
                (None, Role::Answer | Role::Wasted) => self.unknown_attempts += 1,
            }
        }
    }

    fn count(&mut self, usage: &Usage, role: Role, prices: &Prices) {
        let price = prices.of(&usage.model);
        let cost = price.map(|price| price.rates.cost(usage));
        self.total.add(usage, cost);
        match role {
            Role::Answer => self.answers.add(usage, cost),
            Role::Wasted | Role::Running => self.wasted.add(usage, cost),
        }
        let is_full = self.by_model.len() >= MOST_MODELS && !self.by_model.contains_key(&usage.model);
        let (name, price) = if is_full { (OTHERS, None) } else { (usage.model.as_str(), price) };
        let model = self.by_model.entry(name.to_owned()).or_default();
        model.price = price.cloned();
        model.sum.add(usage, cost);
        // A layer that this version does not know counts as the caller.
        let layer = LAYERS.iter().find(|layer| **layer == usage.layer).unwrap_or(&LAYERS[0]);
        self.by_layer.entry((*layer).to_owned()).or_default().add(usage, cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(model: &str, layer: &str, input: u64) -> Usage {
        Usage { model: model.to_owned(), layer: layer.to_owned(), input, ..Usage::default() }
    }

    #[test]
    fn every_attempt_is_counted_once_in_each_division() {
        let prices = Prices::built_in();
        let mut tally = Tally::default();
        tally.count(&usage("gpt-4o", "caller", 1_000_000), Role::Wasted, &prices);
        tally.count(&usage("gpt-4o", "sdk", 2_000_000), Role::Answer, &prices);
        tally.count(&usage("llama", "of the future", 5), Role::Answer, &prices);
        let dollars = |sum: &Sum| (sum.attempts, sum.tokens(), sum.money.dollars(), sum.unpriced_tokens);
        assert_eq!(dollars(&tally.total), (3, 3_000_005, 7.5, 5));
        assert_eq!(dollars(&tally.wasted), (1, 1_000_000, 2.5, 0));
        assert_eq!(dollars(&tally.answers), (2, 2_000_005, 5.0, 5));
        assert_eq!(dollars(&tally.by_model["gpt-4o"].sum), (2, 3_000_000, 7.5, 0));
        assert!(tally.by_model["llama"].price.is_none());
        assert_eq!(dollars(&tally.by_layer["caller"]), (2, 1_000_005, 2.5, 5));
        assert_eq!(dollars(&tally.by_layer["sdk"]), (1, 2_000_000, 5.0, 0));
    }

    #[test]
    fn names_of_models_cannot_fill_the_memory() {
        let prices = Prices::built_in();
        let mut tally = Tally::default();
        for number in 0..3_000 {
            tally.count(&usage(&format!("model-{number}"), "caller", 1), Role::Answer, &prices);
        }
        assert_eq!(tally.by_model.len(), MOST_MODELS + 1);
        assert_eq!((tally.by_model[OTHERS].sum.input, tally.total.input), (2_000, 3_000));
    }
}
