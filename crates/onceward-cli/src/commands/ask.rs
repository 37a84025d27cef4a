//! Probes and checks: commands that answer whether an operation happened, and whether a reported success is true.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use onceward::{Effect, Outcome, ProbeAnswer, Record, Verification};
use serde_json::Value;

use super::run::family;
use crate::environment::Environment;

/// The exit code that means "no". A crash does not produce it by accident.
const NO: i32 = 10;
/// Time limit for the command.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// How long output is read after the command has ended.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);
/// How much of the command's output is read.
const MAX_PRINTED: usize = 64 * 1024;

/// A command that answers a question. It comes from the caller or a trusted policy, never from the ledger.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) command: String,
    /// Exit codes that mean "no", besides 10.
    pub(crate) no: Vec<i32>,
}

/// The answer of the command.
enum QuestionReply {
    Yes,
    No,
    Nothing(String),
}

/// Asks whether an operation happened, in the folder of its call: exit 0 yes, exit 10 no, anything else cannot tell.
pub(crate) fn probe(question: &Question, record: &Record, environment: &Environment) -> ProbeAnswer {
    let about = [
        ("ONCE_OPERATION", record.id.to_string()),
        ("ONCE_KEY", record.key.text.clone()),
        ("ONCE_SCOPE", record.scope.clone()),
        ("ONCE_ATTEMPT", record.attempt.to_string()),
        ("IDEMPOTENCY_KEY", record.id.to_string()),
    ];
    let folder = record.detail.folder.as_deref().map(Path::new);
    match ask(question, folder, &about, environment) {
        QuestionReply::Yes => ProbeAnswer::Yes(Outcome {
            reason: Some("the probe says that it happened; the output of the attempt is lost".to_owned()),
            ..Outcome::with_effect(Effect::Updated)
        }),
        QuestionReply::No => match family::still_running(&environment.name_of(&record.id)) {
            None => ProbeAnswer::No,
            Some(pid) => ProbeAnswer::CannotTell(format!(
                "the probe says no, but a process of the command still runs (process id {pid})"
            )),
        },
        QuestionReply::Nothing(why) => ProbeAnswer::CannotTell(format!("the probe {why}")),
    }
}

/// Checks a reported success: exit 0 confirmed, exit 10 refuted, anything else not yet.
pub(crate) fn verify(
    question: &Question,
    outcome: &Outcome,
    folder: Option<&Path>,
    environment: &Environment,
) -> (Verification, String) {
    let data = outcome.data.as_ref().map(|data| data.get().to_owned()).unwrap_or_default();
    match ask(question, folder, &[("ONCE_RESULT", data)], environment) {
        QuestionReply::Yes => (Verification::Confirmed, String::new()),
        QuestionReply::No => {
            (Verification::Refuted, format!("`{}` reported that it did not take effect", question.command))
        }
        QuestionReply::Nothing(why) => (Verification::Pending, format!("the check {why}")),
    }
}

fn ask(
    Question { command, no }: &Question,
    folder: Option<&Path>,
    about: &[(&str, String)],
    environment: &Environment,
) -> QuestionReply {
    if let Some(why) = folder.and_then(unsuitable) {
        return QuestionReply::Nothing(format!("could not be run: {why}"));
    }
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).envs(about.iter().map(|(name, value)| (name, value)));
    environment.give_to(&mut shell);
    crate::sealing::withhold_key(&mut shell);
    if let Some(folder) = folder {
        shell.current_dir(folder);
    }
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = match shell.spawn() {
        Ok(child) => child,
        Err(error) => return QuestionReply::Nothing(format!("could not be run: {error}")),
    };
    let printed = child.stdout.take().map(Printed::read);
    let Some(code) = ended_within(&mut child, TIME_LIMIT) else {
        return QuestionReply::Nothing(format!("was stopped after {} s", TIME_LIMIT.as_secs()));
    };
    let printed = printed.map(Printed::whole).unwrap_or_default();
    match code {
        Some(0) => yes_unless(&printed),
        Some(code) if code == NO || no.contains(&code) => no_unless(&printed),
        Some(code) => QuestionReply::Nothing(format!(
            "ended with exit code {code}, which is neither yes (0) nor no ({NO})"
        )),
        None => QuestionReply::Nothing("was killed".to_owned()),
    }
}

/// Why a command must not run in a folder that the ledger names. The owner of the folder controls what a command
/// such as `./was-it-sent.sh` does.
pub(super) fn unsuitable(folder: &Path) -> Option<String> {
    let shown = onceward::text::one_line(&folder.display().to_string()).into_owned();
    let Some(meta) = std::fs::metadata(folder).ok().filter(std::fs::Metadata::is_dir) else {
        return Some(format!("its folder {shown} is gone"));
    };
    let here = std::env::current_dir().is_ok_and(|here| here == folder);
    let own = meta.uid() == nix::unistd::geteuid().as_raw() || meta.uid() == 0;
    (!here && !own).then(|| format!("its folder {shown} belongs to another user"))
}

/// The command's output, read on another thread.
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
            // Output that cannot be read counts as none. The closed channel signals the end.
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                let mut text = sink.lock().unwrap_or_else(PoisonError::into_inner);
                let room = MAX_PRINTED.saturating_sub(text.len());
                text.extend_from_slice(&buffer[..length.min(room)]);
            }
            drop(tell);
        });
        Self { text, over }
    }

    /// All of the output. A process that the command left behind may keep the pipe open; it is not waited for.
    fn whole(self) -> Vec<u8> {
        match self.over.recv_timeout(OUTPUT_GRACE) {
            Ok(()) | Err(_) => std::mem::take(&mut *self.text.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

/// With exit 0, a JSON answer can still say "no".
fn yes_unless(printed: &[u8]) -> QuestionReply {
    let words = in_words(printed);
    match words.other_than("yes") {
        None => QuestionReply::Yes,
        Some("no") if matches!(words, Words::Alone(_)) => QuestionReply::No,
        Some(other) => {
            QuestionReply::Nothing(format!("ended with exit code 0 and says that it happened: {other}"))
        }
    }
}

/// Guards against an accidental "no": a tool that exits with the same code but reports an error or a success does
/// not mean "no".
fn no_unless(printed: &[u8]) -> QuestionReply {
    match in_words(printed).other_than("no") {
        None => QuestionReply::No,
        Some(other) => {
            QuestionReply::Nothing(format!("says no by its exit code, and that it happened: {other}"))
        }
    }
}

/// What the command says in JSON about whether it happened: a word, or any other value in its place.
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

/// The exit code, or `None` if the command took too long and was killed.
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
