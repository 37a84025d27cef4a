//! The clock of this machine.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use event_listener::Event;
use onceward::Clock;

/// Wall clock time when the store was opened, plus the time that has passed since: it never runs backwards.
///
/// A real back end needs more: a clock that all processes share, and that cannot be set while they run.
pub(crate) struct SystemClock {
    opened_ms: i64,
    opened: Instant,
}

impl SystemClock {
    pub(crate) fn new() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { opened_ms: whole_ms(since_1970), opened: Instant::now() }
    }
}

fn whole_ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[async_trait]
impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        self.opened_ms + whole_ms(self.opened.elapsed())
    }

    /// Works on any runtime or none, because a thread does the waiting.
    async fn sleep(&self, ms: u64) {
        let over = Arc::new(Event::new());
        let listener = over.listen();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(ms));
            over.notify(1);
        });
        listener.await;
    }
}
