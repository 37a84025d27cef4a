//! What a command can answer with.

use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// What a command can answer with: whatever is `Serialize`. An effect is not.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not data that a command can answer with",
    label = "this is not data",
    note = "data is whatever derives `serde::Serialize`",
    note = "an effect (`Applied<T>`) is not data: only `apply` of a `Mutating` command reports one"
)]
pub trait AnswerData: 'static {
    /// The data as JSON text.
    #[doc(hidden)]
    fn as_json(&self) -> DataJson;
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + 'static> AnswerData for T {
    fn as_json(&self) -> DataJson {
        DataJson(serde_json::value::to_raw_value(self).ok())
    }
}

/// JSON text, or nothing where the data could not be written as JSON: then the result is unavailable, not lost.
#[derive(Debug)]
pub struct DataJson(pub(crate) Option<Box<RawValue>>);

impl Serialize for DataJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Some(text) => text.serialize(serializer),
            None => Err(S::Error::custom("the data could not be written as JSON")),
        }
    }
}
