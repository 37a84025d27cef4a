//! Looking at events and releasing them again, for the API and for `once inbox`. It needs only the ledger.

use std::sync::Arc;

use onceward::event::{self, Deliveries, Fate};
use onceward::{
    Cursor, Error, Filter, InvalidInput, Kind, Ledger, OperationId, Outcome, Record, State, Store, Terms,
    Verdict, Word, rfc3339,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::record::{self, EventData, SCOPE_PREFIX};

/// How many records one step of a listing reads.
const PAGE: usize = 200;

/// Where an event is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// It is being delivered.
    Pending,
    /// All handlers have it.
    Done,
    /// A delivery has spent its attempts: a dead letter.
    Dead,
    /// It is unknown whether a handler has it, and its class forbids another attempt.
    InDoubt,
    /// Its content has been deleted; only its id is remembered.
    Expired,
}

impl Progress {
    /// Every value.
    pub const ALL: [Self; 5] = [Self::Pending, Self::Done, Self::Dead, Self::InDoubt, Self::Expired];

    /// The name, as in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::InDoubt => "in_doubt",
            Self::Expired => "expired",
        }
    }
}

/// An event.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct EventView {
    /// The source.
    pub source: String,
    /// The event's key: the vendor's id, or the digest of what was signed.
    pub key: String,
    /// The record.
    pub operation: String,
    /// Where it is on its way.
    pub progress: Progress,
    /// The vendor's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Whether that id, which is not signed, was used before for other content. One of the two is forged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub id_reused: bool,
    /// The kind of event.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// When it was accepted.
    pub received: String,
    /// When it happened, according to the vendor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occurred: Option<String>,
    /// How often it arrived again. It is written with later writes, so it may be too low.
    pub duplicates: u64,
    /// 1, and one more for each deliberate replay.
    pub occurrence: u32,
    /// What became of it at each handler.
    pub deliveries: Vec<DeliveryView>,
}

/// The delivery of an event to a handler.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DeliveryView {
    /// The handler.
    pub handler: String,
    /// The operation; settle it by this id if it is in doubt.
    pub operation: String,
    /// The state of the operation; `waiting` before the first attempt.
    pub state: &'static str,
    /// How the delivery ended, if it has.
    #[serde(skip)]
    pub fate: Option<Fate>,
    /// How many attempts were made.
    pub attempts: u32,
    /// Why it ended as it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated: Option<String>,
}

/// A page of events, newest first.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct EventList {
    /// The events.
    pub events: Vec<EventView>,
    /// Where the next page begins, if there may be one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Which events to list.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Only of this source.
    pub source: Option<String>,
    /// Only in these places on their way; empty for all.
    pub progress: Vec<Progress>,
    /// Only of this kind.
    pub kind: Option<String>,
    /// Only accepted at this time or later.
    pub since_ms: Option<i64>,
    /// The most events.
    pub limit: usize,
    /// Only older than this.
    pub before: Option<Cursor>,
}

impl Wanted {
    /// The states of events in these places; none for all.
    fn states(&self) -> Vec<State> {
        let states = |progress: &Progress| match progress {
            Progress::Pending => Some(State::Staged),
            Progress::Dead | Progress::InDoubt => Some(State::InDoubt),
            // What is done and past its time may be stored as either.
            Progress::Done | Progress::Expired => None,
        };
        self.progress.iter().map(states).collect::<Option<Vec<State>>>().unwrap_or_default()
    }

    fn includes(&self, view: &EventView) -> bool {
        (self.progress.is_empty() || self.progress.contains(&view.progress))
            && self.kind.as_ref().is_none_or(|kind| view.kind.as_ref() == Some(kind))
    }
}

/// Whether a doubt may be settled on the word of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// The caller says that a delivery in doubt did not happen.
    Yes,
    /// A delivery in doubt stays so.
    No,
}

/// Reads and changes the events of a ledger.
#[derive(Clone)]
pub struct Events {
    store: Arc<dyn Store>,
    ledger: Ledger,
}

impl Events {
    /// The events in this store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { ledger: Ledger::new(Arc::clone(&store)), store }
    }

    /// The events that match, newest first.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn list(&self, wanted: &Wanted) -> Result<EventList, Error> {
        let mut filter = Filter {
            scope: wanted.source.as_deref().map(record::scope),
            scope_prefix: wanted.source.is_none().then(|| SCOPE_PREFIX.to_owned()),
            kinds: vec![Kind::Event],
            since_ms: wanted.since_ms,
            before: wanted.before,
            limit: PAGE,
            ..Filter::default()
        };
        filter.states = wanted.states();
        let mut events = Vec::new();
        loop {
            let page = self.store.list(&filter).await?;
            let is_last = page.len() < PAGE;
            for listed in page {
                filter.before = Some(listed.cursor);
                let Some(source) = source_of(&listed.record) else { continue };
                let view = self.view(&source, &listed.record).await?;
                if listed.record.state == State::InDoubt && view.progress == Progress::Done {
                    self.note_settled(&listed.record, &view).await?;
                }
                if wanted.includes(&view) {
                    events.push(view);
                }
                if events.len() >= wanted.limit {
                    let next_cursor = Some(listed.cursor.0.to_string());
                    return Ok(EventList { events, next_cursor });
                }
            }
            if is_last {
                return Ok(EventList { events, next_cursor: None });
            }
        }
    }

    /// The event that a word refers to: its key, the vendor's id, or the id of its record; of one source or of all.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] if several sources have an event with that key.
    pub async fn find(&self, word: &str, source: Option<&str>) -> Result<(String, Arc<Record>), Error> {
        let is_asked_for = |found: &str| source.is_none_or(|source| source == found);
        if let Ok(id) = OperationId::parse(word)
            && let Some(record) = self.store.load(&id).await?
            && let Some(found) = source_of(&record).filter(|found| is_asked_for(found))
        {
            return Ok((found, record));
        }
        let mut found: Vec<(String, Arc<Record>)> = Vec::new();
        for key in [word.to_owned(), record::id_key(word)] {
            let filter = Filter {
                scope_prefix: Some(SCOPE_PREFIX.to_owned()),
                key: Some(key),
                kinds: vec![Kind::Event],
                limit: PAGE,
                ..Filter::default()
            };
            for listed in self.store.list(&filter).await? {
                let Some(of) = source_of(&listed.record).filter(|of| is_asked_for(of)) else { continue };
                if found.iter().any(|(_, known)| known.id == listed.record.id) {
                    continue;
                }
                if let Some(record) = self.store.load(&listed.record.id).await? {
                    found.push((of, record));
                }
            }
        }
        match (found.pop(), found.is_empty()) {
            (Some(one), true) => Ok(one),
            (None, _) => Err(Error::NotFound { id: word.to_owned() }),
            (Some(_), false) => {
                Err(InvalidInput::new(format!("several sources have an event {word:?}; name the source"))
                    .into())
            }
        }
    }

    /// An event for display.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn view(&self, source: &str, event: &Record) -> Result<EventView, Error> {
        let data = EventData::read(event).unwrap_or_default();
        let to = event.deliveries().cloned().unwrap_or_else(|| Deliveries::to([]));
        let mut deliveries = Vec::new();
        for (handler, fate) in &to.handlers {
            deliveries.push(self.delivery(source, handler, event, (&data, &to), *fate).await?);
        }
        let has = |fate: Fate| deliveries.iter().any(|one| one.fate == Some(fate));
        let progress = match event.state {
            State::Staged => Progress::Pending,
            State::Expired => Progress::Expired,
            State::InDoubt if has(Fate::InDoubt) => Progress::InDoubt,
            State::InDoubt if has(Fate::Dead) => Progress::Dead,
            State::Running | State::Done | State::Failed | State::InDoubt | State::Cancelled => {
                Progress::Done
            }
        };
        Ok(EventView {
            source: source.to_owned(),
            key: event.key.text.clone(),
            operation: event.id.to_string(),
            progress,
            id_reused: data.id.as_ref().is_some_and(|id| event.key.text != record::id_key(id)),
            occurrence: to.round.occurrence,
            id: data.id,
            kind: data.kind,
            received: rfc3339(event.created_ms),
            occurred: data.occurred_ms.map(rfc3339),
            duplicates: event.replays,
            deliveries,
        })
    }

    async fn delivery(
        &self,
        source: &str,
        handler: &str,
        event: &Record,
        (data, to): (&EventData, &Deliveries),
        fate: Option<Fate>,
    ) -> Result<DeliveryView, Error> {
        let (key, occurrence) = (&event.key.text, to.round.occurrence);
        let operation = record::delivery(source, handler, key, data, occurrence, Terms::default());
        let id = self.ledger.intent(operation)?.id;
        let found = match self.ledger.find(&id).await {
            Ok(found) => Some(found),
            Err(Error::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let reason = match &found {
            Some((record, _)) => record.reason().map(str::to_owned),
            None => (fate == Some(Fate::Dead)).then(|| "the source has no handler of this name".to_owned()),
        };
        Ok(DeliveryView {
            handler: handler.to_owned(),
            operation: id.to_string(),
            state: found.as_ref().map_or("waiting", |(_, state)| state.as_str()),
            fate: fate
                .map(|fate| event::seen_now(fate, found.as_ref().map(|(record, state)| (&**record, *state)))),
            attempts: found.as_ref().map_or(0, |(record, _)| record.attempt),
            reason,
            updated: found.as_ref().map(|(record, _)| rfc3339(record.updated_ms)),
        })
    }

    /// Gives the deliveries of an event that failed a new budget of attempts. With [`Again::Yes`], those in doubt are
    /// settled as not having happened, on the caller's word; otherwise they stay as they are. Deliveries that are done
    /// stay done.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is nothing to retry, there are only doubts, or the content has expired.
    pub async fn retry(
        &self,
        source: &str,
        event: &Record,
        again: Again,
        who: &str,
    ) -> Result<EventView, Error> {
        let view = self.view(source, event).await?;
        // The server writes the fate of a delivery a moment after its last attempt.
        let is = |one: &DeliveryView, fate: Fate, state: State| {
            one.fate == Some(fate) || (one.fate.is_none() && one.state == state.as_str())
        };
        let dead = view.deliveries.iter().filter(|one| is(one, Fate::Dead, State::Failed)).count();
        let in_doubt = view.deliveries.iter().filter(|one| is(one, Fate::InDoubt, State::InDoubt));
        let doubts: Vec<&DeliveryView> = in_doubt.collect();
        // A doubt does not keep the dead letters of other handlers from being retried. It stays one.
        if let (0, [first, ..], Again::No) = (dead, doubts.as_slice(), again) {
            return Err(InvalidInput::new(format!(
                "it is in doubt whether the handler {:?} has this event ({}). Check that first; then say that it has \
                 not with --again, or that it has with `once settle {} --as done`",
                first.handler,
                first.reason.as_deref().unwrap_or("no answer"),
                first.operation
            ))
            .into());
        }
        if dead == 0 && doubts.is_empty() {
            return Err(InvalidInput::new(
                "no delivery of this event has failed; `once inbox replay` runs it again",
            )
            .into());
        }
        for doubt in doubts.into_iter().filter(|_| again == Again::Yes) {
            let id = OperationId::parse(&doubt.operation)?;
            let word = Word::program(who).note("it was said not to have happened, and retried".to_owned());
            match self.ledger.admin().settle(&id, Verdict::Failed, word, Outcome::because(None)).await {
                // Another process has settled it or tries it again.
                Ok(_) | Err(Error::WrongState { .. } | Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let again = match again {
            Again::Yes => event::Again::DeadAndInDoubt,
            Again::No => event::Again::Dead,
        };
        self.again(source, event, again).await
    }

    /// Delivers an event again on purpose, as a new occurrence, to the handlers that it had when it arrived.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is still being delivered, or its content has expired.
    pub async fn replay(&self, source: &str, event: &Record) -> Result<EventView, Error> {
        if event.state == State::Staged {
            return Err(
                InvalidInput::new("this event is still being delivered; wait until it has ended").into()
            );
        }
        self.again(source, event, event::Again::Everything).await
    }

    /// Records the fates that a person's word has changed since the deliveries ended.
    async fn note_settled(&self, event: &Record, view: &EventView) -> Result<(), Error> {
        let Some(to) = event.deliveries() else { return Ok(()) };
        let fates = view.deliveries.iter().filter_map(|one| Some((one.handler.clone(), one.fate?)));
        self.ledger.events().ended(&event.id, to.round, &fates.collect()).await?;
        Ok(())
    }

    /// Writes that an event is to be delivered once more.
    async fn again(&self, source: &str, event: &Record, again: event::Again) -> Result<EventView, Error> {
        let not_found = || Error::NotFound { id: event.key.text.clone() };
        // What was settled since its delivery ended is not delivered once more.
        self.note_settled(event, &self.view(source, event).await?).await?;
        let written = self.ledger.events().again(&event.id, again).await?.ok_or_else(not_found)?;
        if written.state == State::Staged {
            return self.view(source, &written).await;
        }
        Err(InvalidInput::new("the content of this event has expired, so it cannot be delivered again")
            .into())
    }
}

/// The source of an event's record. `None` if it is a delivery or something else.
fn source_of(record: &Record) -> Option<String> {
    let source = record.scope.strip_prefix(SCOPE_PREFIX)?;
    (record.name == source).then(|| source.to_owned())
}
