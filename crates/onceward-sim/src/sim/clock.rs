//! Virtual time, which passes only when all tasks wait.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use onceward::Clock;

/// A clock that all parts of a simulation share.
#[derive(Debug, Clone, Default)]
pub struct VirtualClock {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    now_ms: i64,
    sleepers: Vec<(i64, Waker)>,
}

impl VirtualClock {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the next sleeper wakes up.
    #[must_use]
    pub fn next_ms(&self) -> Option<i64> {
        self.inner().sleepers.iter().map(|(until, _)| *until).min()
    }

    /// Moves the clock forward to this time and wakes every sleeper that is due.
    pub fn advance_to(&self, ms: i64) {
        let mut woken = Vec::new();
        {
            let mut inner = self.inner();
            inner.now_ms = inner.now_ms.max(ms);
            let now_ms = inner.now_ms;
            inner.sleepers.retain(|(until, waker)| {
                let stays = *until > now_ms;
                if !stays {
                    woken.push(waker.clone());
                }
                stays
            });
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

#[async_trait]
impl Clock for VirtualClock {
    fn now_ms(&self) -> i64 {
        self.inner().now_ms
    }

    async fn sleep(&self, ms: u64) {
        let until_ms = self.now_ms().saturating_add_unsigned(ms);
        Sleep { clock: self.clone(), until_ms }.await;
    }
}

struct Sleep {
    clock: VirtualClock,
    until_ms: i64,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.clock.inner();
        if inner.now_ms >= self.until_ms {
            return Poll::Ready(());
        }
        inner.sleepers.push((self.until_ms, context.waker().clone()));
        Poll::Pending
    }
}
