//! Conversion of TOML to settings, with a position for each error.

use std::ops::Range;
use std::path::Path;

use clap::Arg;
use sources::suggest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::schema::{CLIENTS, DEVICE_OPTIONS, NAME, SHARE, SOURCE, Schema, ValueKind};
use super::{Config, ConfigError, Setting, Share};
use crate::source::{self, Source, Written};

/// Parses `text`, the contents of the file at `path`, and adds errors to `problems`.
pub(super) fn read(
    path: &Path,
    text: &str,
    schema: &Schema,
    problems: &mut Vec<ConfigError>,
) -> Config {
    let mut reading = ConfigReader {
        path,
        text,
        schema,
        errors: problems,
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        reading.error(error.span(), error.message().to_owned());
    }
    reading.file(table.get_ref())
}

struct ConfigReader<'a> {
    path: &'a Path,
    text: &'a str,
    schema: &'a Schema,
    errors: &'a mut Vec<ConfigError>,
}

type Key<'a> = Spanned<std::borrow::Cow<'a, str>>;

impl ConfigReader<'_> {
    fn error(&mut self, span: Option<Range<usize>>, message: String) {
        self.errors
            .push(ConfigError::new(self.path, self.text, span, message));
    }

    fn unknown_key(&mut self, key: &Key<'_>, what: &str, known: &[&str]) {
        let name = key.get_ref();
        let meant = match suggest(name, known.iter().copied()) {
            Some(meant) => format!("; did you mean {meant}?"),
            None => String::new(),
        };
        let message = format!("{name}: expected {what}{meant}");
        self.error(Some(key.span()), message);
    }

    fn file(&mut self, table: &DeTable<'_>) -> Config {
        let schema = self.schema;
        self.check_aliases(table);
        let mut config = Config::new(self.path);
        for (key, value) in table {
            match (key.get_ref().as_ref(), schema.option(key.get_ref())) {
                (SHARE, _) => self.shares(key, value, &mut config),
                (_, Some(arg)) => config.settings.extend(self.settings(arg, key, value, "")),
                (NAME | SOURCE | CLIENTS, None) => {
                    let message = format!("{}: expected only in a [[{SHARE}]]", key.get_ref());
                    self.error(Some(key.span()), message);
                }
                (_, None) => self.unknown_key(key, "an option of barge serve", &schema.keys()),
            }
        }
        config
    }

    fn shares(&mut self, key: &Key<'_>, value: &Spanned<DeValue<'_>>, config: &mut Config) {
        let tables = value.get_ref().as_array();
        let tables = tables.and_then(|array| {
            let tables = array
                .iter()
                .map(|share| Some((share.span(), share.get_ref().as_table()?)));
            tables.collect::<Option<Vec<_>>>()
        });
        let Some(tables) = tables else {
            return self.error(Some(key.span()), format!("expected tables: [[{SHARE}]]"));
        };
        for (span, table) in tables {
            let share = self.share(span, table, config);
            config.shares.extend(share);
        }
    }

    fn share(
        &mut self,
        span: Range<usize>,
        table: &DeTable<'_>,
        config: &mut Config,
    ) -> Option<Share> {
        let name = table.get(NAME).and_then(|name| self.name(name));
        let source = table.get(SOURCE);
        if source.is_none() {
            self.error(
                Some(span.clone()),
                format!("expected a {SOURCE} in a [[{SHARE}]]"),
            );
        }
        let source = source.and_then(|source| self.source(source));
        let prefix = name
            .as_deref()
            .map_or(String::new(), |name| format!("{name}="));
        let schema = self.schema;
        self.check_aliases(table);
        let (mut says, mut settings) = (Vec::new(), Vec::new());
        for (key, value) in table {
            let word = key.get_ref().as_ref();
            match schema.option(word) {
                _ if [NAME, SOURCE].contains(&word) => {}
                _ if word == CLIENTS => {
                    let shown = name.as_deref().unwrap_or("");
                    let list = self.clients(shown, key, value);
                    config.settings.extend(list);
                }
                Some(arg) if DEVICE_OPTIONS.contains(&long_name(arg)) => {
                    let device = self.settings(arg, key, value, &prefix);
                    config.settings.extend(device);
                }
                Some(arg) if schema.is_share_option(long_name(arg)) => {
                    says.push(long_name(arg).to_owned());
                    settings.extend(self.settings(arg, key, value, ""));
                }
                Some(_) => {
                    let message = format!(
                        "{word}: expected before all [[{SHARE}]] tables: it is no option of a single share"
                    );
                    self.error(Some(key.span()), message);
                }
                None => self.unknown_key(key, "a key of a share", &schema.share_keys()),
            }
        }
        Some(Share {
            offset: span.start,
            name,
            source: source?,
            keys: says,
            settings,
            objects: Vec::new(),
            reopened: 0,
            released: false,
        })
    }

    /// Checks that `table` sets no option under two of its names.
    fn check_aliases(&mut self, table: &DeTable<'_>) {
        let schema = self.schema;
        for key in table.keys() {
            let word = key.get_ref().as_ref();
            let usual = schema.option(word).map(long_name);
            if let Some(usual) = usual.filter(|usual| *usual != word && table.contains_key(*usual))
            {
                let message = format!("{word}: expected one name of the option, got {usual} too");
                self.error(Some(key.span()), message);
            }
        }
    }

    fn name(&mut self, value: &Spanned<DeValue<'_>>) -> Option<String> {
        let name = value
            .get_ref()
            .as_str()
            .filter(|name| source::is_name(name));
        if name.is_none() {
            let message = format!("{NAME}: expected letters, digits, '.', '_' and '-'");
            self.error(Some(value.span()), message);
        }
        name.map(str::to_owned)
    }

    fn source(&mut self, value: &Spanned<DeValue<'_>>) -> Option<(Written, Source)> {
        let Some(text) = value.get_ref().as_str() else {
            self.error(Some(value.span()), format!("{SOURCE}: expected a string"));
            return None;
        };
        match Written::parse(text) {
            Ok(source) => Some(source),
            Err(why) => {
                self.error(Some(value.span()), format!("{SOURCE}: {why}"));
                None
            }
        }
    }

    /// Parses the list of clients, in the format of a line of exports(5).
    fn clients(
        &mut self,
        name: &str,
        key: &Key<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<Setting> {
        let texts = self.argument_values(ValueKind::List, key, value)?;
        let texts: Vec<_> = texts.into_iter().flatten().collect();
        let arg = self.schema.option("export").expect("it is an option");
        self.setting(
            arg,
            value.span(),
            Some(format!("/{name} {}", texts.join(" "))),
        )
    }

    /// Returns the settings of the option `arg` at `key`, with `prefix` before each value.
    fn settings(
        &mut self,
        arg: &Arg,
        key: &Key<'_>,
        value: &Spanned<DeValue<'_>>,
        prefix: &str,
    ) -> Vec<Setting> {
        let Some(texts) = self.argument_values(ValueKind::of(arg), key, value) else {
            return Vec::new();
        };
        let settings = texts.into_iter().filter_map(|text| {
            let text = text.map(|text| format!("{prefix}{text}"));
            self.setting(arg, value.span(), text)
        });
        settings.collect()
    }

    fn setting(&mut self, arg: &Arg, span: Range<usize>, value: Option<String>) -> Option<Setting> {
        let key = long_name(arg).to_owned();
        let setting = Setting { key, value };
        match self.schema.argument_error(&setting.argument()) {
            None => Some(setting),
            Some(why) => {
                self.error(Some(span), format!("{}: {why}", setting.key));
                None
            }
        }
    }

    /// Returns the value of each occurrence of the option as arguments; `None` is an occurrence
    /// without a value.
    fn argument_values(
        &mut self,
        kind: ValueKind,
        key: &Key<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<Vec<Option<String>>> {
        let given = value.get_ref();
        let texts = match (kind, given) {
            (ValueKind::Flag | ValueKind::OptionalValue, DeValue::Boolean(true)) => {
                Some(vec![None])
            }
            (ValueKind::Flag | ValueKind::OptionalValue, DeValue::Boolean(false)) => {
                Some(Vec::new())
            }
            (ValueKind::Count, DeValue::Integer(number)) => number
                .as_str()
                .parse()
                .ok()
                .filter(|times| *times < 10)
                .map(|times| vec![None; times]),
            (ValueKind::List, DeValue::Array(several)) => several
                .iter()
                .map(|one| text(one.get_ref()).map(Some))
                .collect(),
            (ValueKind::Single | ValueKind::OptionalValue | ValueKind::List, one) => {
                text(one).map(|one| vec![Some(one)])
            }
            _ => None,
        };
        if texts.is_none() {
            let (name, got) = (key.get_ref(), given.type_str());
            let message = format!("{name}: expected {}, got {got}", kind.expected());
            self.error(Some(value.span()), message);
        }
        texts
    }
}

/// Returns the name of an option, which is its key.
fn long_name(arg: &Arg) -> &str {
    arg.get_long().expect("options have names")
}

fn text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        _ => None,
    }
}
