//! Reads the server's sections setting by setting, so that all mistakes are reported together, each with its place.

use onceward::suggestion;
use serde::de::value::Error as Stopped;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;
use toml::{Table, Value};

use super::{HandlerConfig, KeepingConfig, ServeConfig, TenantConfig};
use crate::gateway::config::Upstream;
use crate::gateway::rules::Rule;
use crate::inbox::SourceConfig;
use crate::mistake::Mistake;
use crate::problem::without_value;

/// Every setting that cannot be read. The values are not repeated: they may be secrets.
pub(super) fn mistakes(sections: &Table) -> Vec<Mistake> {
    let mut reader = Reader::default();
    if let Some(Value::Table(serve)) = sections.get("serve") {
        reader.settings(&["serve"], "[serve]", serve, &[Kind::of::<ServeConfig>()]);
    }
    reader.named(sections, "tenant", Reader::tenant);
    reader.named(sections, "upstream", Reader::upstream);
    reader.named(sections, "hook", Reader::hook);
    reader.mistakes
}

/// The settings of a type, and how one of them is read.
struct Kind {
    names: &'static [&'static str],
    read: fn(Table) -> Result<(), toml::de::Error>,
}

impl Kind {
    fn of<T: DeserializeOwned>() -> Self {
        Self { names: names_of::<T>(), read: |table| table.try_into::<T>().map(drop) }
    }
}

#[derive(Default)]
struct Reader {
    mistakes: Vec<Mistake>,
}

impl Reader {
    /// Reads the sections `[SECTION.NAME]`.
    fn named(&mut self, sections: &Table, section: &str, read: fn(&mut Self, &str, &str, &Table)) {
        for (name, value) in sections.get(section).and_then(Value::as_table).into_iter().flatten() {
            let title = format!("[{section}.{name}]");
            match value.as_table() {
                Some(table) => read(self, name, &title, table),
                None => self.note(&[section, name], format!("write {title} on its own line")),
            }
        }
    }

    fn tenant(&mut self, name: &str, title: &str, tenant: &Table) {
        self.settings(&["tenant", name], title, tenant, &[Kind::of::<TenantConfig>()]);
    }

    fn upstream(&mut self, name: &str, title: &str, upstream: &Table) {
        let path = ["upstream", name];
        let mut own = upstream.clone();
        match own.remove("rule") {
            None => {}
            Some(Value::Array(rules)) => {
                for (at, rule) in rules.iter().enumerate() {
                    let at = at.to_string();
                    let title = format!("[[upstream.{name}.rule]]");
                    if let Some(rule) = rule.as_table() {
                        let path = ["upstream", name, "rule", &at];
                        self.settings(&path, &title, rule, &[Kind::of::<Rule>()]);
                    } else {
                        self.note(&path, format!("write {title} on its own line"));
                    }
                }
            }
            Some(_) => {
                let what = format!("{title} rule: write [[upstream.{name}.rule]] on its own line");
                self.note(&["upstream", name, "rule"], what);
            }
        }
        self.settings(&path, title, &own, &[Kind::of::<Upstream>(), Kind::of::<Rule>()]);
    }

    fn hook(&mut self, name: &str, title: &str, hook: &Table) {
        let mut own = hook.clone();
        let handlers = match own.remove("handler") {
            None => Table::new(),
            Some(Value::Table(handlers)) => handlers,
            Some(_) => {
                let what = format!("{title} handler: write [hook.{name}.handler.NAME] on its own line");
                return self.note(&["hook", name, "handler"], what);
            }
        };
        for (handler, config) in &handlers {
            let title = format!("[hook.{name}.handler.{handler}]");
            let path = ["hook", name, "handler", handler];
            if let Some(config) = config.as_table() {
                self.settings(&path, &title, config, &[Kind::of::<HandlerConfig>()]);
            } else {
                self.note(&path, format!("write {title} on its own line"));
            }
        }
        let kinds = [Kind::of::<KeepingConfig>(), Kind::of::<SourceConfig>()];
        self.settings(&["hook", name], title, &own, &kinds);
    }

    /// Reads the settings one at a time. Every one of them may be left out.
    fn settings(&mut self, path: &[&str], title: &str, table: &Table, kinds: &[Kind]) {
        for (name, value) in table {
            let place = [path, &[name.as_str()]].concat();
            let Some(kind) = kinds.iter().find(|kind| kind.names.contains(&name.as_str())) else {
                let known = || kinds.iter().flat_map(|kind| kind.names.iter().copied());
                let mut meant = suggestion(name, known());
                if meant.is_empty() {
                    meant = format!("; its settings are {}", known().collect::<Vec<_>>().join(", "));
                }
                self.note(&place, format!("{title} has no setting `{name}`{meant}"));
                continue;
            };
            let alone = Table::from_iter([(name.clone(), value.clone())]);
            if let Err(error) = (kind.read)(alone) {
                let why = without_value(error.message());
                self.note(&place, format!("{title} {name}: {why}"));
            }
        }
    }

    fn note(&mut self, path: &[&str], what: String) {
        self.mistakes.push(Mistake::of(path, what));
    }
}

/// The names of a type's fields, as its `Deserialize` knows them.
fn names_of<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // It stops after the names, so it returns no value.
    drop(T::deserialize(Names(&mut names)));
    names
}

struct Names<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = Stopped;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Stopped> {
        Err(Stopped::custom("it is not a struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Stopped> {
        *self.0 = fields;
        Err(Stopped::custom("only the names are read"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The default policy is the documentation of every section.
    #[test]
    fn the_default_policy_documents_every_setting_and_its_samples_are_valid() {
        let (_, server) = onceward::DEFAULT_POLICY.split_once("\n# The server (").unwrap();
        let is_setting = |line: &str| {
            let name = line.split_once(" = ").map(|(name, _)| name);
            let plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            line.starts_with('[') || name.is_some_and(plain)
        };
        let lines = server.lines().filter_map(|line| line.strip_prefix("# "));
        let sample: Vec<&str> = lines.filter(|line| is_setting(line)).collect();
        let policy = onceward::Policy::parse(&sample.join("\n")).unwrap();
        let config = crate::Config::from_policy(&policy).unwrap();
        crate::App::check(&config).unwrap();
        let sections = policy.server_sections();
        let documented = |path: &[&str]| {
            let below = path.iter().try_fold(None, |table: Option<&Table>, step| {
                Some(table.unwrap_or(&sections).get(*step).and_then(Value::as_table)).filter(Option::is_some)
            });
            below.flatten().map(|table| table.keys().cloned().collect::<Vec<_>>()).unwrap_or_default()
        };
        for (path, kind) in [
            (&["serve"][..], Kind::of::<ServeConfig>()),
            (&["tenant", "acme"], Kind::of::<TenantConfig>()),
            (&["upstream", "shop"], Kind::of::<Upstream>()),
            (&["hook", "chat"], Kind::of::<KeepingConfig>()),
        ] {
            let documented = documented(path);
            for name in kind.names {
                assert!(documented.iter().any(|known| known == name), "{path:?} {name} is not documented");
            }
        }
        let mut handlers = documented(&["hook", "chat", "handler", "app"]);
        handlers.extend(documented(&["hook", "chat", "handler", "job"]));
        handlers.extend(documented(&["hook", "chat", "handler", "shop"]));
        // A command is only allowed without tenants, and the sample has one.
        handlers.extend(server.contains("`command = [").then(|| "command".to_owned()));
        for name in Kind::of::<HandlerConfig>().names {
            assert!(handlers.iter().any(|known| known == name), "handler {name} is not documented");
        }
    }

    #[test]
    fn every_mistake_has_its_section_and_line_and_no_value_is_repeated() {
        let text = "[serve]\nlisten = \"s3cret\"\nmax_bdy = 1\n[tenant.acme]\ntokens = \"s3cret\"\n\
                    [upstream.u]\nurl = \"https://x\"\nprest = \"none\"\nclass = \"s3cret\"\nbanana = 1\n\
                    [[upstream.u.rule]]\nmethods = [\"POST\"]\n[[upstream.u.rule]]\npath = [\"/a\"]\n";
        let policy = onceward::Policy::parse(text).unwrap();
        let invalid = crate::Config::from_policy(&policy).unwrap_err();
        let words = [
            "line 2: [serve] listen: invalid type, expected a sequence",
            "line 3: [serve] has no setting `max_bdy`; did you mean `max_body`?",
            "line 5: [tenant.acme] tokens: invalid type, expected a sequence",
            "line 8: [upstream.u] has no setting `prest`; did you mean `preset`?",
            "line 9: [upstream.u] class: unknown variant, expected one of `read`",
            "line 10: [upstream.u] has no setting `banana`; its settings are url, preset, host",
            "line 14: [[upstream.u.rule]] has no setting `path`; did you mean `paths`?",
        ];
        assert_eq!(invalid.problems().len(), words.len(), "{invalid}");
        for (problem, words) in invalid.problems().iter().zip(words) {
            assert!(problem.starts_with(words), "{problem}");
        }
        assert!(!invalid.to_string().contains("s3cret"), "{invalid}");
    }
}
