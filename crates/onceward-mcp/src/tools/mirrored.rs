//! Arguments that an HTTP request repeats in a header, for intermediaries that do not read bodies.

use crate::wire::raw::Object;

/// An argument that a header repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mirrored {
    /// Its path in the arguments.
    pub(crate) path: Vec<String>,
    /// The suffix of the header's name.
    pub(crate) token: String,
}

/// The arguments that headers repeat, according to an input schema.
pub(crate) fn mirrored(schema: &str) -> Vec<Mirrored> {
    let mut found = Vec::new();
    collect(schema, &mut Vec::new(), &mut found);
    found
}

fn collect(schema: &str, path: &mut Vec<String>, found: &mut Vec<Mirrored>) {
    let Some(schema) = Object::parse(schema) else { return };
    let Some(properties) = schema.object("properties") else { return };
    for (name, property) in properties.members() {
        path.push(name.to_owned());
        if let Some(token) = Object::parse(property).and_then(|property| property.string("x-mcp-header")) {
            found.push(Mirrored { path: path.clone(), token });
        }
        collect(property, path, found);
        path.pop();
    }
}
