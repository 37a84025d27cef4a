//! The modules of the crates as their sources declare them, and what each of them takes from the others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::buffer::{Cursor, TokenBuffer};
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Ident, ImplItem, Item, UseTree};

use super::{packages, root};

/// A library or a program: the modules that are reached from its root file, without tests.
pub(super) struct Target {
    /// The crate, and the program if the crate has a library as well.
    pub(super) name: String,
    pub(super) package: String,
    pub(super) files: Vec<File>,
    scopes: BTreeMap<String, Scope>,
    uses: Vec<Use>,
}

/// A module with a file of its own.
pub(super) struct File {
    /// Its path from the root of the workspace.
    pub(super) path: String,
    pub(super) syntax: syn::File,
}

/// What the names in a module refer to. An inline module has a scope too.
#[derive(Default)]
struct Scope {
    /// The module of the file that contains it, and that file.
    module: String,
    file: String,
    items: BTreeSet<String>,
    imports: BTreeMap<String, Vec<Vec<String>>>,
    globs: Vec<Vec<String>>,
}

/// A path in the code of a module.
struct Use {
    scope: String,
    path: Vec<String>,
    /// Whether it takes something from a module that it names: an attribute calls functions of one.
    of_module: bool,
}

/// What a path refers to: an item and the scope that defines it, or a scope.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    Item(String, String),
    Module(String),
}

/// The items that each module takes from other modules, except from its ancestors.
pub(super) type Imports = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// All libraries and programs of the workspace.
pub(super) fn targets() -> Vec<Target> {
    let mut found = Vec::new();
    for folder in packages() {
        let package = folder.file_name().unwrap().to_string_lossy().into_owned();
        let has_library = folder.join("src/lib.rs").exists();
        let mut roots = vec![folder.join("src/lib.rs"), folder.join("src/main.rs")];
        if let Ok(programs) = std::fs::read_dir(folder.join("src/bin")) {
            for program in programs.map(|program| program.unwrap().path()) {
                roots.push(if program.is_dir() { program.join("main.rs") } else { program });
            }
        }
        for file in roots.iter().filter(|file| file.exists()) {
            let program = file.strip_prefix(folder.join("src")).unwrap().with_extension("");
            let is_main = program == Path::new("lib") || (program == Path::new("main") && !has_library);
            let name = if is_main { package.clone() } else { format!("{package} {}", program.display()) };
            let read = |path: &Path| std::fs::read_to_string(path).ok();
            found.push(Target::read(&name, &package, file, &read));
        }
    }
    assert!(found.len() >= packages().len(), "a crate without a root: {} targets", found.len());
    found
}

impl Target {
    /// Reads a target from its root file.
    pub(super) fn read(
        name: &str,
        package: &str,
        file: &Path,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Self {
        let mut target = Self {
            name: name.to_owned(),
            package: package.to_owned(),
            files: Vec::new(),
            scopes: BTreeMap::new(),
            uses: Vec::new(),
        };
        // The children of the root are beside it.
        target.add("", file, file.parent().unwrap(), read);
        target
    }

    /// Adds the module in this file, and the modules below it.
    fn add(&mut self, module: &str, file: &Path, folder: &Path, read: &dyn Fn(&Path) -> Option<String>) {
        let text = read(file).unwrap_or_else(|| panic!("{} cannot be read", file.display()));
        let mut syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        WithoutTests.visit_file_mut(&mut syntax);
        let path = file.strip_prefix(root()).unwrap_or(file).display().to_string();
        let scope = module.to_owned();
        let mut reader = Reader { target: self, module, path: &path, scope, children: Vec::new() };
        reader.declare(&syntax.items);
        reader.visit_file(&syntax);
        let children = reader.children;
        self.files.push(File { path, syntax });
        for child in children {
            let below =
                child.strip_prefix(module).unwrap_or(&child).trim_start_matches("::").replace("::", "/");
            let beside = folder.join(format!("{below}.rs"));
            let inside = folder.join(&below).join("mod.rs");
            let file = if read(&beside).is_some() { beside } else { inside };
            self.add(&child, &file, &folder.join(&below), read);
        }
    }

    /// What each module takes from the others. Re-exports are followed to the module that defines the item.
    pub(super) fn imports(&self) -> Imports {
        let mut imports = Imports::new();
        for Use { scope, path, of_module } in &self.uses {
            let (defining, item) = match self.resolve(scope, path, &mut BTreeSet::new()) {
                Some(Named::Item(scope, item)) => (scope, item),
                Some(Named::Module(scope)) if *of_module => (scope, path.join("::")),
                // What is taken from the module has a path of its own.
                Some(Named::Module(_)) | None => continue,
            };
            let (from, to) = (&self.scopes[scope].module, &self.scopes[&defining].module);
            let is_ancestor =
                to.is_empty() || from.strip_prefix(to).is_some_and(|rest| rest.starts_with("::"));
            if from != to && !is_ancestor {
                imports.entry(from.clone()).or_default().entry(to.clone()).or_default().insert(item);
            }
        }
        imports
    }

    /// The paths that the code names, as they are written, each with its file.
    pub(super) fn paths(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.uses.iter().map(|used| (self.scopes[&used.scope].file.as_str(), used.path.as_slice()))
    }

    fn resolve(&self, scope: &str, path: &[String], seen: &mut BTreeSet<(String, String)>) -> Option<Named> {
        let mut scope = scope;
        let mut rest = path;
        while let Some(first) = rest.first() {
            match first.as_str() {
                "crate" => scope = "",
                "self" => {}
                "super" => scope = scope.rsplit_once("::").map_or("", |(parent, _)| parent),
                _ => break,
            }
            rest = &rest[1..];
        }
        let begins_here = rest.len() == path.len();
        match self.find(scope, rest, seen) {
            // A macro makes it, or it comes from another crate.
            None if !begins_here => rest.first().map(|item| Named::Item(scope.to_owned(), item.clone())),
            found => found,
        }
    }

    /// What a path refers to that begins in this scope.
    fn find(&self, scope: &str, path: &[String], seen: &mut BTreeSet<(String, String)>) -> Option<Named> {
        let Some((name, rest)) = path.split_first() else { return Some(Named::Module(scope.to_owned())) };
        if !seen.insert((scope.to_owned(), name.clone())) {
            return None;
        }
        let here = &self.scopes[scope];
        let child = joined(scope, name);
        let is_module = self.scopes.contains_key(&child);
        // A module and an item may have one name.
        if here.items.contains(name) && (rest.is_empty() || !is_module) {
            return Some(Named::Item(scope.to_owned(), name.clone()));
        }
        if is_module {
            // The same.
            let made = || rest.first().map(|item| Named::Item(child.clone(), item.clone()));
            return self.find(&child, rest, seen).or_else(made);
        }
        let imported = here.imports.get(name).into_iter().flatten().cloned();
        let globs = here.globs.iter().map(|glob| [glob.as_slice(), std::slice::from_ref(name)].concat());
        let paths = imported.chain(globs).map(|path| [path.as_slice(), rest].concat());
        paths.into_iter().find_map(|path| self.resolve(scope, &path, seen))
    }
}

fn joined(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

/// Collects what a file declares, imports and names.
struct Reader<'a> {
    target: &'a mut Target,
    module: &'a str,
    path: &'a str,
    scope: String,
    children: Vec<String>,
}

impl Reader<'_> {
    fn declare(&mut self, items: &[Item]) {
        let scope = self.target.scopes.entry(self.scope.clone()).or_default();
        scope.module = self.module.to_owned();
        scope.file = self.path.to_owned();
        scope.items.extend(items.iter().filter_map(|item| declared(item).0).map(Ident::to_string));
    }

    fn names(&mut self, path: Vec<String>, of_module: bool) {
        self.target.uses.push(Use { scope: self.scope.clone(), path, of_module });
    }

    fn import(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &Ident| [before, &[name.to_string()]].concat();
        let (name, path) = match tree {
            UseTree::Path(path) => return self.import(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => return group.items.iter().for_each(|tree| self.import(tree, before)),
            UseTree::Glob(_) => {
                self.target.scopes.get_mut(&self.scope).unwrap().globs.push(before.to_vec());
                return self.names(before.to_vec(), false);
            }
            // `use module::{self}`
            UseTree::Name(name) if name.ident == "self" => (before.last().cloned(), before.to_vec()),
            UseTree::Name(name) => (Some(name.ident.to_string()), with(&name.ident)),
            UseTree::Rename(name) if name.ident == "self" => (Some(name.rename.to_string()), before.to_vec()),
            UseTree::Rename(name) => (Some(name.rename.to_string()), with(&name.ident)),
        };
        let imports = &mut self.target.scopes.get_mut(&self.scope).unwrap().imports;
        imports.entry(name.unwrap_or_default()).or_default().push(path.clone());
        self.names(path, false);
    }

    /// The paths in the tokens of a macro, or of an attribute, which may also be in strings.
    fn tokens(&mut self, mut at: Cursor, is_attribute: bool) {
        let (mut path, mut colons, mut is_absolute) = (Vec::new(), 0, false);
        while !at.eof() {
            let mut ends = true;
            if let Some((name, next)) = at.ident() {
                if colons != 2 {
                    self.end(&mut path, is_absolute);
                }
                is_absolute = if path.is_empty() { colons == 2 } else { is_absolute };
                path.push(name.to_string());
                (colons, ends, at) = (0, false, next);
            } else if let Some((mark, next)) = at.punct() {
                ends = mark.as_char() != ':';
                (colons, at) = (if ends { 0 } else { colons + 1 }, next);
            } else if let Some((inside, _, _, next)) = at.any_group() {
                self.tokens(inside, is_attribute);
                at = next;
            } else if let Some((literal, next)) = at.literal() {
                let text = literal.to_string();
                if let Ok(path) = syn::parse_str::<syn::Path>(text.trim_matches('"'))
                    && is_attribute
                {
                    self.names(segments(&path), true);
                }
                at = next;
            } else if let Some((_, next)) = at.token_tree() {
                at = next;
            }
            if ends {
                self.end(&mut path, is_absolute);
                colons = 0;
            }
        }
        self.end(&mut path, is_absolute);
    }

    /// A single name in a macro is a variable, or it is imported.
    fn end(&mut self, path: &mut Vec<String>, is_absolute: bool) {
        let path = std::mem::take(path);
        if path.len() > 1 && !is_absolute {
            self.names(path, false);
        }
    }
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let module = joined(&self.scope, &item.ident.to_string());
        let Some((_, items)) = &item.content else { return self.children.push(module) };
        let outer = std::mem::replace(&mut self.scope, module);
        self.declare(items);
        visit::visit_item_mod(self, item);
        self.scope = outer;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&item.tree, &[]);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.names(segments(path), false);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(TokenBuffer::new2(call.tokens.clone()).begin(), false);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(TokenBuffer::new2(list.tokens.clone()).begin(), true);
        }
    }
}

/// Removes what only tests contain.
struct WithoutTests;

impl VisitMut for WithoutTests {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        file.items.retain(|item| !is_test(declared(item).1));
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, item: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut item.content {
            items.retain(|item| !is_test(declared(item).1));
        }
        visit_mut::visit_item_mod_mut(self, item);
    }

    fn visit_item_impl_mut(&mut self, item: &mut syn::ItemImpl) {
        item.items.retain(|item| !matches!(item, ImplItem::Fn(function) if is_test(&function.attrs)));
        visit_mut::visit_item_impl_mut(self, item);
    }
}

/// Whether an attribute says that this is built for tests only: `cfg(test)` and `cfg(all(test, …))`.
fn is_test(attributes: &[Attribute]) -> bool {
    let configured = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    configured.filter_map(|attribute| attribute.meta.require_list().ok()).any(|list| {
        let condition = list.tokens.to_string().replace(' ', "");
        condition == "test" || condition.starts_with("all(test,")
    })
}

/// The name that an item declares, and its attributes. The names of modules are known from their files.
fn declared(item: &Item) -> (Option<&Ident>, &[Attribute]) {
    match item {
        Item::Const(item) => (Some(&item.ident), &item.attrs),
        Item::Enum(item) => (Some(&item.ident), &item.attrs),
        Item::ExternCrate(item) => (None, &item.attrs),
        Item::Fn(item) => (Some(&item.sig.ident), &item.attrs),
        Item::ForeignMod(item) => (None, &item.attrs),
        Item::Impl(item) => (None, &item.attrs),
        Item::Macro(item) => (item.ident.as_ref(), &item.attrs),
        Item::Mod(item) => (None, &item.attrs),
        Item::Static(item) => (Some(&item.ident), &item.attrs),
        Item::Struct(item) => (Some(&item.ident), &item.attrs),
        Item::Trait(item) => (Some(&item.ident), &item.attrs),
        Item::TraitAlias(item) => (Some(&item.ident), &item.attrs),
        Item::Type(item) => (Some(&item.ident), &item.attrs),
        Item::Union(item) => (Some(&item.ident), &item.attrs),
        Item::Use(item) => (None, &item.attrs),
        Item::Verbatim(_) => (None, &[]),
        _ => (None, &[]),
    }
}
