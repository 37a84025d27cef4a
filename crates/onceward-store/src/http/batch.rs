//! Compare-and-swaps of callers that wait at the same time share a request, and at the server a commit.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::future::join_all;
use onceward::wire::{self, SwapReply, SwapRequest, Swapped, SwapsReply, SwapsRequest};
use onceward::{Outcome, StoreError};
use tokio::sync::oneshot;

use super::link::{Link, Unanswered};
use super::{encode, refusal};
use crate::remote::RuntimeThread;

/// How many requests are in flight. While they are, further callers gather for the next one.
const IN_FLIGHT: usize = 2;
/// The most compare-and-swaps in one request.
const MOST: usize = 256;
/// The size of the results in one request from which it is complete.
const MOST_BYTES: usize = 512 * 1024;

type Answer = Result<SwapReply, Unanswered>;

/// The compare-and-swaps that wait.
pub(super) struct Swaps {
    link: Arc<Link>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    in_flight: usize,
}

/// Whether a task that sends what waits is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Needed,
    Exists,
}

struct Waiting {
    swap: Arc<SwapRequest>,
    until: Instant,
    answer: oneshot::Sender<Answer>,
}

impl Swaps {
    pub(super) fn new(link: &Arc<Link>) -> Arc<Self> {
        Arc::new(Self { link: Arc::clone(link), queue: Mutex::default() })
    }

    /// Carries out a compare-and-swap, together with those of other callers.
    pub(super) async fn swap(
        self: &Arc<Self>,
        swap: Arc<SwapRequest>,
        until: Instant,
        runtime: &RuntimeThread,
    ) -> Answer {
        let (answer, answered) = oneshot::channel();
        if self.queue().push(Waiting { swap, until, answer }) == Sender::Needed {
            let all = Arc::clone(self);
            runtime.spawn(async move { all.send_all().await });
        }
        let stopped =
            |_| Unanswered::Error(StoreError::unavailable("the store's runtime thread has stopped"));
        answered.await.map_err(stopped)?
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what waits, until nothing does.
    async fn send_all(&self) {
        loop {
            let batch = {
                let mut queue = self.queue();
                let batch = queue.take();
                if batch.is_empty() {
                    queue.in_flight -= 1;
                    return;
                }
                batch
            };
            self.send(batch).await;
        }
    }

    async fn send(&self, batch: Vec<Waiting>) {
        let until = batch.iter().map(|one| one.until).max().unwrap_or_else(Instant::now);
        let swaps: Vec<Arc<SwapRequest>> = batch.iter().map(|one| Arc::clone(&one.swap)).collect();
        let answers = self.answers(swaps, until).await;
        for (one, answer) in batch.into_iter().zip(answers) {
            // The caller may have stopped waiting.
            drop(one.answer.send(answer));
        }
    }

    async fn answers(&self, mut swaps: Vec<Arc<SwapRequest>>, until: Instant) -> Vec<Answer> {
        let count = swaps.len();
        if count == 1 {
            return join_all(swaps.iter().map(|swap| self.alone(swap, until))).await;
        }
        let request = SwapsRequest { swaps };
        let reply = match encode(&request) {
            Ok(body) => self.link.write(wire::SWAPS, &body, until).await,
            Err(error) => Err(Unanswered::Error(error)),
        };
        swaps = request.swaps;
        match reply {
            Ok(SwapsReply { swapped }) if swapped.len() == count => {
                swapped.into_iter().map(|swapped| self.answer(swapped)).collect()
            }
            Ok(_) => all_lost(count, "its reply is about another number of changes"),
            Err(Unanswered::Lost(why)) => all_lost(count, &why),
            // The server may refuse only what is too long, for example. Then each says so for itself.
            Err(Unanswered::Error(_)) => join_all(swaps.iter().map(|swap| self.alone(swap, until))).await,
        }
    }

    async fn alone(&self, swap: &SwapRequest, until: Instant) -> Answer {
        let body = encode(swap).map_err(Unanswered::Error)?;
        self.link.write(wire::SWAP, &body, until).await
    }

    fn answer(&self, swapped: Swapped) -> Answer {
        match swapped {
            Swapped::Replied(reply) => Ok(reply),
            Swapped::Failed(problem) => Err(Unanswered::Error(refusal::of_store(&self.link.shown, problem))),
        }
    }
}

fn all_lost(count: usize, why: &str) -> Vec<Answer> {
    (0..count).map(|_| Err(Unanswered::Lost(why.to_owned()))).collect()
}

impl Queue {
    fn push(&mut self, one: Waiting) -> Sender {
        self.waiting.push_back(one);
        if self.in_flight >= IN_FLIGHT {
            return Sender::Exists;
        }
        self.in_flight += 1;
        Sender::Needed
    }

    fn take(&mut self) -> Vec<Waiting> {
        let (mut count, mut bytes) = (0, 0);
        for one in self.waiting.iter().take(MOST) {
            if count > 0 && bytes >= MOST_BYTES {
                break;
            }
            count += 1;
            bytes += one.swap.record.outcome.as_ref().map_or(0, Outcome::size);
        }
        self.waiting.drain(..count).collect()
    }
}
