//! Arguments that a request by HTTP says twice: in its body, and in a header for those who do not read bodies.

use crate::raw::Object;

/// An argument that is also said by a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mirrored {
    /// Its path in the arguments.
    pub(crate) path: Vec<String>,
    /// What the header's name ends with.
    pub(crate) token: String,
}

/// The arguments that an input schema wants to be said by headers too.
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
