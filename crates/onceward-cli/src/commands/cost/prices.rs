//! What tokens cost.

use std::collections::BTreeMap;

use onceward::{InvalidInput, Usage};
use serde::{Deserialize, Serialize};

/// The prices that are built in, with their dates and sources.
const BUILT_IN: &str = include_str!("prices.toml");

/// A price of at most this many dollars for a million tokens is accepted.
const HIGHEST: f64 = 1_000_000.0;

/// Money, in millionths of a millionth of a dollar. A price for a million tokens with six digits after the point is a
/// whole number for one token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Money(u128);

impl Money {
    pub(super) fn dollars(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "it is shown, not added up")]
        let pico = self.0 as f64;
        pico / 1e12
    }

    /// Rounded to cents, or to millionths of a dollar if it is less than one.
    pub(super) fn shown(self) -> String {
        let rounded = |unit: u128| self.0.saturating_add(unit / 2) / unit;
        let cents = rounded(10_000_000_000);
        if self.0 == 0 || cents >= 100 {
            return format!("${}.{:02}", cents / 100, cents % 100);
        }
        let millionths = rounded(1_000_000);
        format!("${}.{:06}", millionths / 1_000_000, millionths % 1_000_000)
    }

    /// For a bar: how large it is compared with another.
    pub(super) fn weight(self) -> u128 {
        self.0
    }
}

impl std::ops::AddAssign for Money {
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.saturating_add(other.0);
    }
}

/// The rates of a model, in dollars for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rates {
    input: f64,
    /// Tokens that the provider read from its cache. Default: the same as `input`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cached: Option<f64>,
    output: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    long: Option<LongRates>,
}

/// The rates of a long request.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct LongRates {
    /// A request with more tokens than this is long.
    above: u64,
    input: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached: Option<f64>,
    output: f64,
}

impl Rates {
    pub(super) fn cost(&self, usage: &Usage) -> Money {
        let (input, cached, output) = match self.long {
            Some(long) if usage.input.saturating_add(usage.cached) > long.above => {
                (long.input, long.cached, long.output)
            }
            Some(_) | None => (self.input, self.cached, self.output),
        };
        let part = |tokens: u64, price: f64| u128::from(tokens) * u128::from(pico(price));
        Money(
            part(usage.input, input)
                + part(usage.cached, cached.unwrap_or(input))
                + part(usage.output, output),
        )
    }

    fn check(&self, model: &str) -> Result<(), InvalidInput> {
        let long = self.long.map(|long| [Some(long.input), long.cached, Some(long.output)]);
        let all =
            [Some(self.input), self.cached, Some(self.output)].into_iter().chain(long.into_iter().flatten());
        match all.flatten().find(|price| !(0.0..=HIGHEST).contains(price)) {
            Some(price) => Err(InvalidInput::new(format!(
                "the price {price} of {model:?} is not an amount in dollars for a million tokens"
            ))),
            None => Ok(()),
        }
    }
}

/// Dollars for a million tokens, as money for one token.
fn pico(price: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "`Rates::check` limits prices"
    )]
    let pico = (price * 1e6).round() as u64;
    pico
}

/// Where a price comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Origin {
    pub(super) source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) date: Option<String>,
}

/// The price of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Price {
    #[serde(flatten)]
    pub(super) rates: Rates,
    #[serde(flatten)]
    pub(super) origin: Origin,
}

/// Tables of prices. The first table that has a model decides.
#[derive(Debug, Clone, Default)]
pub(super) struct Prices(Vec<BTreeMap<String, Price>>);

impl Prices {
    /// The prices that are built in.
    pub(super) fn built_in() -> Self {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Group {
            source: String,
            #[expect(dead_code, reason = "it documents the file")]
            seen: String,
            date: String,
            models: BTreeMap<String, Rates>,
        }
        #[expect(clippy::expect_used, reason = "a test reads the same text")]
        let groups: BTreeMap<String, Group> =
            toml::from_str(BUILT_IN).expect("the table that is built in is valid");
        let mut table = BTreeMap::new();
        for group in groups.into_values() {
            let origin = Origin { source: group.source, date: Some(group.date) };
            let priced = group.models.into_iter();
            table.extend(priced.map(|(model, rates)| (model, Price { rates, origin: origin.clone() })));
        }
        Self(vec![table])
    }

    /// Puts prices before those that are there: one table of rates for each model.
    ///
    /// # Errors
    /// Says what is wrong with them.
    pub(super) fn overridden(mut self, prices: toml::Table, source: &str) -> Result<Self, InvalidInput> {
        let mut table = BTreeMap::new();
        for (model, rates) in prices {
            let rates: Rates = rates.try_into().map_err(|error: toml::de::Error| {
                let form = "{ input = 2.5, cached = 1.25, output = 10 }";
                InvalidInput::new(format!(
                    "{source}: the price of {model:?}: {}; write {form}",
                    error.message().trim()
                ))
            })?;
            rates.check(&model)?;
            let origin = Origin { source: source.to_owned(), date: None };
            table.insert(model, Price { rates, origin });
        }
        self.0.insert(0, table);
        Ok(self)
    }

    /// The price of a model, by its name or the name of which it is a version.
    pub(super) fn of(&self, model: &str) -> Option<&Price> {
        // Routers put the provider before the model.
        let short = model.rsplit('/').next().unwrap_or(model);
        self.0.iter().find_map(|table| table.get(model).or_else(|| by_version(table, short)))
    }
}

fn by_version<'a>(table: &'a BTreeMap<String, Price>, model: &str) -> Option<&'a Price> {
    table.get(model).or_else(|| {
        let mut ends = model.rmatch_indices('-');
        ends.find_map(|(at, _)| table.get(&model[..at]).filter(|_| is_version(&model[at + 1..])))
    })
}

/// Whether the end of a name is a version of the same model: a date or a number of at least three digits.
fn is_version(end: &str) -> bool {
    let mut parts = end.split('-');
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    end == "latest"
        || (parts.next().is_some_and(|first| first.len() >= 3 && is_number(first)) && parts.all(is_number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(input: u64, cached: u64, output: u64) -> Usage {
        Usage { input, cached, output, ..Usage::default() }
    }

    #[test]
    fn the_table_that_is_built_in_has_a_date_and_a_source_for_every_price() {
        let prices = Prices::built_in();
        assert!(prices.0[0].len() > 40);
        for (model, price) in &prices.0[0] {
            price.rates.check(model).unwrap();
            assert!(price.origin.source.starts_with("https://"), "{model}");
            let date = price.origin.date.as_deref().unwrap();
            assert!(humantime::parse_rfc3339(&format!("{date}T00:00:00Z")).is_ok(), "{model}: {date}");
            let Rates { input, cached, .. } = price.rates;
            assert!(cached.is_none_or(|cached| cached < input), "{model}");
        }
    }

    #[test]
    fn a_name_stands_for_its_versions_only() {
        let prices = Prices::built_in();
        let input = |model: &str| prices.of(model).map(|price| price.rates.input);
        assert_eq!(input("gpt-4o"), Some(2.5));
        assert_eq!(input("gpt-4o-2024-08-06"), Some(2.5));
        assert_eq!(input("gpt-4o-2024-05-13"), Some(5.0));
        assert_eq!(input("openai/gpt-4o-latest"), Some(2.5));
        assert_eq!(input("claude-opus-4-20250514"), Some(15.0));
        assert_eq!(input("claude-opus-4-5-20251101"), Some(5.0));
        // Other models, although their names begin in the same way.
        for model in ["gpt-4o-audio", "claude-opus-4-9", "claude-opus-4-9-20270101", "gpt-4", "", "-"] {
            assert_eq!(input(model), None, "{model}");
        }
    }

    #[test]
    fn a_cost_is_exact_and_long_requests_have_their_own_rates() {
        let prices = Prices::built_in();
        let cost = |model: &str, usage: &Usage| prices.of(model).unwrap().rates.cost(usage).dollars();
        assert_eq!(cost("gpt-4o", &usage(1_000, 200, 300)), 0.005_75);
        assert_eq!(cost("gpt-4.1-nano", &usage(0, 1, 0)), 0.000_000_025);
        assert_eq!(cost("gemini-2.5-pro", &usage(100_000, 100_000, 0)), 0.137_5);
        assert_eq!(cost("gemini-2.5-pro", &usage(100_001, 100_000, 0)), 0.275_002_5);
        // Without a rate of their own, tokens from the cache cost as much as others.
        assert_eq!(cost("gpt-4o-2024-05-13", &usage(0, 1_000_000, 0)), 5.0);
        // The largest number does not overflow.
        let most = usage(u64::MAX, u64::MAX, u64::MAX);
        assert!(cost("gpt-4o", &most) > 1e13);
    }

    #[test]
    fn money_is_rounded_once() {
        let shown = [0, 1, 500_000, 87_500_000, 994_999_999_999, 995_000_000_000, 1_234_560_000_000_000];
        let shown = shown.map(|pico| Money(pico).shown());
        assert_eq!(shown, ["$0.00", "$0.000000", "$0.000001", "$0.000088", "$0.995000", "$1.00", "$1234.56"]);
    }

    #[test]
    fn prices_of_the_user_come_first_and_mistakes_are_named() {
        let read = |text: &str| Prices::built_in().overridden(toml::from_str(text).unwrap(), "mine.toml");
        let prices =
            read("\"gpt-4o\" = { input = 1, output = 2 }\nllama = { input = 0, output = 0 }").unwrap();
        // The user's price of the family counts before the built-in price of one version.
        assert_eq!(prices.of("gpt-4o-2024-05-13").unwrap().rates.input, 1.0);
        assert_eq!(prices.of("llama").unwrap().origin.source, "mine.toml");
        assert_eq!(prices.of("gpt-4o-mini").unwrap().rates.input, 0.15);
        for (text, problem) in [
            ("m = 3", "the price of \"m\""),
            ("m = { input = 1 }", "output"),
            ("m = { input = 1, output = 1, out = 1 }", "out"),
            ("m = { input = -1, output = 1 }", "-1"),
            ("m = { input = nan, output = 1 }", "NaN"),
            ("m = { input = 1, output = 1e9 }", "1000000000"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
