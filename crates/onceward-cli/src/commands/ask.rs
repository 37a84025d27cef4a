//! Read-only questions that commands answer: did it happen, and is a reported success true?

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use onceward::{Effect, Outcome, ProbeAnswer, Record, Verification};
use serde_json::Value;

/// The exit code by which a question is answered "no". A crash does not end with it by accident.
const NO: i32 = 10;
/// How long a question may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long output is read after the question has been answered.
const LINGER: Duration = Duration::from_secs(1);
/// How much of what a question prints is read.
const MAX_PRINTED: usize = 64 * 1024;

/// What a question's command said.
enum Said {
    Yes,
    No,
    Nothing(String),
}

/// Asks whether an operation happened, in the folder of its call: exit 0 yes, exit 10 no, anything else cannot tell.
pub(crate) fn probe(command: &str, record: &Record) -> ProbeAnswer {
    let environment = [
        ("ONCE_OPERATION", record.id.to_string()),
        ("ONCE_KEY", record.key.text.clone()),
        ("ONCE_SCOPE", record.scope.clone()),
        ("ONCE_ATTEMPT", record.attempt.to_string()),
        ("IDEMPOTENCY_KEY", record.id.to_string()),
    ];
    let folder = record.detail.folder.as_deref().map(Path::new);
    match ask(command, folder, &environment, &record.detail.probe_no) {
        Said::Yes => ProbeAnswer::Yes(Outcome {
            reason: Some("the probe says that it happened; the output of the attempt is lost".to_owned()),
            ..Outcome::with_effect(Effect::Updated)
        }),
        Said::No => ProbeAnswer::No,
        Said::Nothing(why) => ProbeAnswer::CannotTell(format!("the probe {why}")),
    }
}

/// Checks a reported success: exit 0 confirmed, exit 10 refuted, anything else not yet.
pub(crate) fn verify(command: &str, outcome: &Outcome, folder: Option<&Path>) -> (Verification, String) {
    let data = outcome.data.as_ref().map(|data| data.get().to_owned()).unwrap_or_default();
    match ask(command, folder, &[("ONCE_RESULT", data)], &[]) {
        Said::Yes => (Verification::Confirmed, String::new()),
        Said::No => (Verification::Refuted, format!("it did not take effect, says `{command}`")),
        Said::Nothing(why) => (Verification::Pending, format!("the check {why}")),
    }
}

fn ask(command: &str, folder: Option<&Path>, environment: &[(&str, String)], no: &[i32]) -> Said {
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Said::Nothing(format!("could not be asked: its folder {} is gone", folder.display()));
    }
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).envs(environment.iter().map(|(name, value)| (name, value)));
    if let Some(folder) = folder {
        shell.current_dir(folder);
    }
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = match shell.spawn() {
        Ok(child) => child,
        Err(error) => return Said::Nothing(format!("could not be asked: {error}")),
    };
    let printed = child.stdout.take().map(Printed::read);
    let Some(code) = ended_within(&mut child, PATIENCE) else {
        return Said::Nothing(format!("was stopped after {} s", PATIENCE.as_secs()));
    };
    let printed = printed.map(Printed::whole).unwrap_or_default();
    match code {
        Some(0) => yes_unless(&printed),
        Some(code) if code == NO || no.contains(&code) => no_unless(&printed),
        Some(code) => {
            Said::Nothing(format!("ended with exit code {code}, which is neither yes (0) nor no ({NO})"))
        }
        None => Said::Nothing("was killed".to_owned()),
    }
}

/// What a question's command prints, read beside it.
struct Printed {
    text: Arc<Mutex<Vec<u8>>>,
    over: mpsc::Receiver<()>,
}

impl Printed {
    fn read(mut from: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let (tell, over) = mpsc::channel();
        let sink = Arc::clone(&text);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // What cannot be read says nothing. Its end is told by the channel's.
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                let mut text = sink.lock().unwrap_or_else(PoisonError::into_inner);
                let room = MAX_PRINTED.saturating_sub(text.len());
                text.extend_from_slice(&buffer[..length.min(room)]);
            }
            drop(tell);
        });
        Self { text, over }
    }

    /// All of it. Something that the command left behind may hold its output open, and is not waited for.
    fn whole(self) -> Vec<u8> {
        match self.over.recv_timeout(LINGER) {
            Ok(()) | Err(_) => std::mem::take(&mut *self.text.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

/// A question can say in JSON what exit 0 alone cannot.
fn yes_unless(printed: &[u8]) -> Said {
    let words = in_words(printed);
    match words.other_than("yes") {
        None => Said::Yes,
        Some("no") if matches!(words, Words::Alone(_)) => Said::No,
        Some(other) => Said::Nothing(format!("ended with exit code 0 and says that it happened: {other}")),
    }
}

/// A "no" must not be said by accident: a tool that ends with the same code and tells of an error, or of a success,
/// does not mean "no".
fn no_unless(printed: &[u8]) -> Said {
    match in_words(printed).other_than("no") {
        None => Said::No,
        Some(other) => Said::Nothing(format!("says no by its exit code, and that it happened: {other}")),
    }
}

/// What a question's command says in JSON about whether it happened: a word, or what is in its place.
enum Words {
    /// The answer is all that it printed.
    Alone(String),
    /// Answers among other text, or several of them, or none. They can contradict the exit code, not replace it.
    Among(Vec<String>),
}

impl Words {
    /// The first one that is not this word.
    fn other_than(&self, word: &str) -> Option<&str> {
        let words = match self {
            Self::Alone(only) => std::slice::from_ref(only),
            Self::Among(words) => words.as_slice(),
        };
        words.iter().map(String::as_str).find(|other| *other != word)
    }
}

fn in_words(printed: &[u8]) -> Words {
    if let Ok(answer) = serde_json::from_slice(printed) {
        return word_of(&answer).map_or(Words::Among(Vec::new()), Words::Alone);
    }
    let mut rest = printed;
    let mut words = Vec::new();
    loop {
        // A log may come before an answer, or after it.
        let mut answers = serde_json::Deserializer::from_slice(rest).into_iter::<serde_json::Map<_, _>>();
        if let Some(Ok(answer)) = answers.next() {
            words.extend(word_of(&answer));
            let read = answers.byte_offset();
            rest = rest.get(read..).unwrap_or_default();
        } else if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            rest = rest.get(end + 1..).unwrap_or_default();
        } else {
            return Words::Among(words);
        }
    }
}

fn word_of(answer: &serde_json::Map<String, Value>) -> Option<String> {
    match (answer.get("happened"), answer.get("error")) {
        (Some(Value::String(word)), _) => Some(word.clone()),
        (Some(Value::Bool(true)), _) => Some("yes".to_owned()),
        (Some(other), _) => Some(other.to_string()),
        (None, Some(Value::Null) | None) => None,
        (None, Some(_)) => Some("unknown".to_owned()),
    }
}

/// The exit code, or nothing where the command took too long and was killed.
fn ended_within(child: &mut Child, time: Duration) -> Option<Option<i32>> {
    let end = Instant::now() + time;
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.code()),
            Ok(None) if Instant::now() < end => std::thread::sleep(pause),
            Ok(None) | Err(_) => {
                drop(child.kill());
                drop(child.wait());
                return None;
            }
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
