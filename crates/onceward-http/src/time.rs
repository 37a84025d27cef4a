//! Time on the ledger's clock. Whatever decides by time asks that clock and not the machine's, so that a test can step
//! it. Only connections have time limits of their own.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use onceward::Clock;
#[cfg(feature = "serve")]
use serde::{Deserialize, Deserializer};

/// What the future returns, or `None` if this much time passes first.
pub async fn within<T>(clock: &dyn Clock, span: Duration, future: impl Future<Output = T>) -> Option<T> {
    match select(pin!(future), clock.sleep(ms(span))).await {
        Either::Left((ready, _)) => Some(ready),
        Either::Right(_) => None,
    }
}

/// Waits until this much time has passed.
pub async fn sleep(clock: &dyn Clock, span: Duration) {
    clock.sleep(ms(span)).await;
}

/// Waits until the clock shows `at_ms`.
pub async fn sleep_until(clock: &dyn Clock, at_ms: i64) {
    clock.sleep(u64::try_from(at_ms.saturating_sub(clock.now_ms())).unwrap_or(0)).await;
}

/// The time after this span.
#[must_use]
pub fn after(clock: &dyn Clock, span: Duration) -> i64 {
    clock.now_ms().saturating_add_unsigned(ms(span))
}

/// Whether less than this span has passed since then.
#[must_use]
pub fn is_within(clock: &dyn Clock, span: Duration, since_ms: i64) -> bool {
    clock.now_ms() < since_ms.saturating_add_unsigned(ms(span))
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Reads a duration as a policy writes it: `30s`, `5m`.
#[cfg(feature = "serve")]
pub(crate) fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text).map(Some).map_err(serde::de::Error::custom)
}
