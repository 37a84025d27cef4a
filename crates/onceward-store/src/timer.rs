//! Sleeping on any runtime or none: one timer thread per process.
//!
//! A forked process has none of its parent's threads, so it starts its own timer thread.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Waits for that duration.
pub(crate) fn sleep(span: Duration) -> Sleep {
    Sleep { due: Instant::now() + span, place: None }
}

/// A future that is ready after its deadline.
#[derive(Debug)]
pub(crate) struct Sleep {
    due: Instant,
    /// The timer that holds the waker, and the key of its entry.
    place: Option<(Arc<Timer>, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.due {
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        if let Some((timer, number)) = &self.place {
            timer.list().sleepers.insert((self.due, *number), waker);
        } else {
            let timer = Timer::of_this_process();
            let number = timer.enter(self.due, waker);
            self.place = Some((timer, number));
        }
        // The deadline may have passed while the entry was added.
        if Instant::now() >= self.due { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((timer, number)) = &self.place {
            timer.list().sleepers.remove(&(self.due, *number));
        }
    }
}

#[derive(Debug, Default)]
struct Timer {
    list: Mutex<List>,
    earlier: Condvar,
}

#[derive(Debug, Default)]
struct List {
    next: u64,
    sleepers: BTreeMap<(Instant, u64), Waker>,
    /// When the thread looks at the list next without being notified. `None`: never.
    looks_at: Option<Instant>,
}

impl Timer {
    fn of_this_process() -> Arc<Self> {
        static TIMER: Mutex<Option<(u32, Arc<Timer>)>> = Mutex::new(None);
        let process = std::process::id();
        let mut timer = TIMER.lock().unwrap_or_else(PoisonError::into_inner);
        match &*timer {
            Some((of, timer)) if *of == process => Arc::clone(timer),
            Some(_) | None => {
                let own = Arc::new(Self::default());
                *timer = Some((process, Arc::clone(&own)));
                let thread = Arc::clone(&own);
                let run = move || thread.run();
                // Without a thread there are no wake-ups, but polling still works.
                drop(std::thread::Builder::new().name("once-timer".to_owned()).spawn(run));
                own
            }
        }
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, due: Instant, waker: Waker) -> u64 {
        let mut list = self.list();
        let number = list.next;
        list.next += 1;
        list.sleepers.insert((due, number), waker);
        // Many sleeps are dropped long before they are due. The thread is woken only for one that it would miss.
        let is_missed = list.looks_at.is_none_or(|at| due < at);
        drop(list);
        if is_missed {
            self.earlier.notify_one();
        }
        number
    }

    fn run(&self) {
        let mut list = self.list();
        loop {
            let now = Instant::now();
            let later = list.sleepers.split_off(&(now + Duration::from_nanos(1), 0));
            let due = std::mem::replace(&mut list.sleepers, later);
            if !due.is_empty() {
                drop(list);
                due.into_values().for_each(Waker::wake);
                list = self.list();
                continue;
            }
            let next = list.sleepers.first_key_value().map(|((due, _), _)| *due);
            list.looks_at = next;
            list = match next {
                Some(due) => {
                    let waited = self.earlier.wait_timeout(list, due.saturating_duration_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.earlier.wait(list).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_sleep_ends_first() {
        let started = Instant::now();
        let nap = |ms| async move {
            sleep(Duration::from_millis(ms)).await;
            ms
        };
        let long = std::thread::spawn(move || pollster::block_on(nap(60)));
        let (short, none) = (pollster::block_on(nap(20)), pollster::block_on(nap(0)));
        assert!(started.elapsed() >= Duration::from_millis(20));
        assert_eq!((short, none, long.join().unwrap()), (20, 0, 60));
        assert!(started.elapsed() >= Duration::from_millis(60));
    }

    #[test]
    fn a_dropped_sleep_is_removed() {
        let mut dropped = Box::pin(sleep(Duration::from_secs(3_600)));
        assert!(dropped.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let due = dropped.due;
        let timer = Timer::of_this_process();
        assert!(timer.list().sleepers.keys().any(|(at, _)| *at == due));
        drop(dropped);
        assert!(timer.list().sleepers.keys().all(|(at, _)| *at != due));
    }
}
