//! The configuration of a running server: settings of a command line as those of a file, and shares
//! and endpoints that are added and removed while the server runs.

use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use serde_json::{Map, Value};

use super::schema::{Schema, ValueKind};
use super::{Config, ConfigErrors, Setting, Share, client_list_name, quoted, setting_line};
use crate::source::{DEFAULT_SOURCE, Source, SourceArg, Written};

/// Options whose endpoints can be added and removed while the server runs.
pub(crate) const ENDPOINTS: [&str; 5] = ["9p", "virtiofs", "virtio-9p", "block", "nbd"];

/// Options with other endpoints, and options that take one of them, which stay as they are.
const FIXED_ENDPOINTS: [&str; 6] = [
    "nfs",
    "nfs-rpcbind",
    "http",
    "http-name",
    "http-admit",
    "control",
];

/// Returns whether the option `key`, outside shares, can change while the server runs.
pub(super) fn is_live(key: &str) -> bool {
    key == "export" || ENDPOINTS.contains(&key)
}

/// Options of a single share, which are no defaults of shares that are added.
const OF_ONE_SHARE: [&str; 2] = ["overlay", "record-trace"];

/// The origin of an addition, in messages.
const REQUEST: &str = "request";

impl Config {
    /// Returns the settings of a command line of `barge serve`. The error is one line.
    pub(crate) fn of_command_line(matches: &ArgMatches) -> Result<Config, String> {
        let schema = Schema::get();
        let mut config = Config::new(Path::new("command line"));
        config.is_file = false;
        config.can_change = matches.value_source("control") == Some(ValueSource::CommandLine);
        for arg in schema.options() {
            let Some(key) = arg.get_long() else {
                continue;
            };
            if ["verbose", "log-format"].contains(&key) {
                continue;
            }
            let values = given_values(arg, matches)?;
            config.settings.extend(values.into_iter().map(|value| {
                let key = key.to_owned();
                Setting { key, value }
            }));
        }
        let sources = matches.get_many::<SourceArg>("sources");
        let sources: Vec<_> = sources.into_iter().flatten().cloned().collect();
        if sources.is_empty() {
            // Without a source, the current directory is served read-only.
            let key = "read-only".to_owned();
            config
                .shares
                .push(Share::of(None, Written::parse(DEFAULT_SOURCE)?));
            config.settings.retain(|setting| setting.key != key);
            config.settings.push(Setting { key, value: None });
        }
        for source in sources {
            config.shares.push(Share::of(source.name, source.source));
        }
        if let [only] = config.shares.as_mut_slice() {
            let is_own = |setting: &mut Setting| OF_ONE_SHARE.contains(&&*setting.key);
            only.settings = config.settings.extract_if(.., is_own).collect();
            only.keys = only.settings.iter().map(|it| it.key.clone()).collect();
        }
        config.check().map_err(|(_, why)| why)?;
        Ok(config)
    }

    /// Returns the path of the file, unless the settings are from elsewhere.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.is_file.then_some(&*self.path)
    }

    /// Parses `text`, tables of shares and endpoints to add.
    pub(crate) fn addition(text: &str) -> Result<Config, ConfigErrors> {
        let mut config = Config::parse(Path::new(REQUEST), text)?;
        config.is_file = false;
        // A list of clients is that of a share of the addition.
        let is_own_list = |setting: &Setting| {
            let name = client_list_name(setting.value.as_deref().unwrap_or_default());
            let mut shares = config.shares.iter();
            shares.any(|share| share.name.as_deref() == Some(name))
        };
        let can_be_added = |setting: &Setting| match setting.key.as_str() {
            "export" => is_own_list(setting),
            key => ENDPOINTS.contains(&key),
        };
        let other = config.settings.iter().find(|it| !can_be_added(it));
        match other {
            None => Ok(config),
            Some(other) => Err(ConfigErrors::of_file(
                Path::new(REQUEST),
                format!(
                    "{}: expected an endpoint that can be added while the server runs ({})",
                    other.key,
                    ENDPOINTS.join(", ")
                ),
            )),
        }
    }

    /// Returns the configuration of the shares and endpoints of `addition` alone, with all other
    /// options of this one.
    pub(crate) fn with_only(&self, addition: &Config) -> Config {
        let stays = |setting: &&Setting| {
            !is_live(&setting.key) && !FIXED_ENDPOINTS.contains(&setting.key.as_str())
        };
        addition.after(self.settings.iter().filter(stays))
    }

    /// Returns the configuration of all settings of this one and of `addition`, and of the shares
    /// of `addition` alone.
    pub(crate) fn with_shares_of(&self, addition: &Config) -> Config {
        addition.after(self.settings.iter())
    }

    /// Returns the configuration of this addition with `settings` before its own.
    fn after<'a>(&'a self, settings: impl Iterator<Item = &'a Setting>) -> Config {
        Config {
            path: PathBuf::from(REQUEST),
            is_file: false,
            can_change: true,
            settings: settings.chain(&self.settings).cloned().collect(),
            shares: self.shares.clone(),
            files: self.files.clone(),
        }
    }

    /// Replaces the defaults of shares by those of `other`.
    pub(crate) fn take_share_defaults(&mut self, other: &Config) {
        let schema = Schema::get();
        let is_default = |setting: &Setting| schema.is_share_option(&setting.key);
        self.settings.retain(|setting| !is_default(setting));
        let defaults = other.settings.iter().filter(|it| is_default(it));
        self.settings.extend(defaults.cloned());
    }

    /// Adds the shares and endpoints of `addition`.
    pub(crate) fn add(&mut self, addition: Config) {
        self.settings.extend(addition.settings);
        self.shares.extend(addition.shares);
        self.files = self.files.with(&addition.files);
    }

    /// Removes the share called `name`, with its clients and devices.
    pub(crate) fn remove_share(&mut self, name: &str) {
        self.retain_shares(|other| other != name);
    }

    /// Sets the option `key` of the share called `name`; the share without a name is "".
    pub(crate) fn set_of_share(&mut self, name: &str, key: &str, value: String) {
        let own = |share: &&mut Share| share.name.as_deref().unwrap_or_default() == name;
        let Some(share) = self.shares.iter_mut().find(own) else {
            return;
        };
        let key = key.to_owned();
        share.settings.retain(|setting| setting.key != key);
        if !share.keys.contains(&key) {
            share.keys.push(key.clone());
        }
        share.settings.push(Setting {
            key,
            value: Some(value),
        });
    }

    /// Removes the settings with one of `keys` whose values `is_removed` selects.
    pub(crate) fn remove_settings(&mut self, is_removed: impl Fn(&str, &str) -> bool) {
        self.settings.retain(|setting| {
            let value = setting.value.as_deref().unwrap_or_default();
            !is_removed(&setting.key, value)
        });
    }

    /// Formats the configuration as a file, without defaults.
    pub(crate) fn text(&self) -> String {
        let schema = Schema::get();
        let mut text = String::new();
        for arg in schema.options() {
            let key = arg.get_long().expect("options have names");
            let all = self.settings.iter().filter(|setting| setting.key == key);
            let given = all.clone().count();
            if given == 0 {
                continue;
            }
            let values: Vec<_> = all.filter_map(|setting| setting.value.clone()).collect();
            text.push_str(&setting_line(key, ValueKind::of(arg), given, &values));
        }
        self.add_shares(schema, &mut text);
        text
    }
}

/// Returns the value of each occurrence of `arg` on a command line; `None` is an occurrence without
/// a value. The error is one line.
fn given_values(arg: &Arg, matches: &ArgMatches) -> Result<Vec<Option<String>>, String> {
    let id = arg.get_id().as_str();
    if matches.value_source(id) != Some(ValueSource::CommandLine) {
        return Ok(Vec::new());
    }
    match ValueKind::of(arg) {
        ValueKind::Flag => return Ok(vec![None]),
        ValueKind::Count => return Ok(vec![None; matches.get_count(id).into()]),
        ValueKind::Single | ValueKind::OptionalValue | ValueKind::List => {}
    }
    let mut values = Vec::new();
    for value in matches.try_get_raw(id).ok().flatten().into_iter().flatten() {
        let value = value
            .to_str()
            .ok_or_else(|| format!("{id}: expected UTF-8"))?;
        values.push(Some(value.to_owned()));
    }
    match values.is_empty() {
        true => Ok(vec![None]),
        false => Ok(values),
    }
}

/// Returns the options of `args` that a command line gives as the keys and values of a file.
pub(crate) fn given_options(
    args: &Command,
    matches: &ArgMatches,
) -> Result<Map<String, Value>, String> {
    let mut options = Map::new();
    for arg in args.get_arguments() {
        let Some(key) = arg.get_long() else {
            continue;
        };
        let values = given_values(arg, matches)?;
        if values.is_empty() {
            continue;
        }
        let strings: Vec<_> = values.iter().flatten().cloned().collect();
        let value = match (ValueKind::of(arg), strings.as_slice()) {
            (ValueKind::Count, _) => values.len().into(),
            (ValueKind::List, _) => strings.into(),
            (_, [single]) => single.clone().into(),
            _ => true.into(),
        };
        options.insert(key.to_owned(), value);
    }
    Ok(options)
}

impl Share {
    fn of(name: Option<String>, source: (Written, Source)) -> Share {
        Share {
            offset: 0,
            name,
            source,
            keys: Vec::new(),
            settings: Vec::new(),
            objects: Vec::new(),
            reopened: 0,
            released: false,
        }
    }
}

/// Formats a JSON object as keys and values of TOML. Values are strings, integers, booleans, and
/// arrays of strings.
pub(crate) fn toml_of(object: &Map<String, Value>) -> Result<String, String> {
    let mut text = String::new();
    for (key, value) in object {
        let value = match value {
            Value::String(string) => quoted(string),
            Value::Bool(flag) => flag.to_string(),
            Value::Number(number) if number.is_u64() => number.to_string(),
            Value::Array(all) => {
                let all: Option<Vec<_>> = all.iter().map(|it| it.as_str().map(quoted)).collect();
                let all = all.ok_or_else(|| format!("{key}: expected an array of strings"))?;
                format!("[{}]", all.join(", "))
            }
            _ => {
                return Err(format!(
                    "{key}: expected a string, a number, true, false or an array of strings"
                ));
            }
        };
        text.push_str(&format!("{} = {value}\n", quoted(key)));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use clap::Args;
    use command::log::LogArgs;

    use super::*;
    use crate::serve::args::ServeArgs;

    /// Sources with every parameter of every scheme.
    const EVERY_PARAMETER: &[&str] = &[
        "9p://h:1/a%3F?version=9p2000.L&msize=8192&uname=u&uid=7&aname=b&zerocopy=off&inflight=64k\
         &retry=5&timeo=20&soft",
        "9p+unix:/s?aname=b&hard",
        "9p+vsock:3:1?uname=u",
        "9p+vsock-uds:/s:1?msize=8192",
        "9p+virtio:/s?msize=8192",
        "nfs://h/a?vers=4.1&mountport=1&rsize=4096&wsize=4096&inflight=64k&uid=7&gid=8&noreadplus\
         &nodelegations&resvport&retry=5&timeo=30&soft&xprtsec=mtls&tlsca=/a&tlscert=/c&tlskey=/k",
        "nfs://h/a?xprtsec=tls",
        "nfs+unix:/s?path=/x%20y&hard&vers=3",
        "virtiofs:/s?max_write=8k&inflight=4096&soft&timeo=15",
        "https://user:hush@h/k?X-Amz-Signature=hush",
        "s3://b/k?region=x&secret_access_key=hush&cache_dir=/c&cache_dir_size=1G",
        "gs://b/k?service_account_key=hush",
        "az://c@account/k?sas_key=hush",
        "oci://h/r:t/x?plain_http=true&hosts_dir=/h&cache_dir=/c&cache_dir_size=1G",
        "image:/a?device=/b&device=/c",
        "dir:/a",
        "/a=b",
        "mem:",
        "refer:/a@h+i",
    ];

    #[test]
    fn every_parameter_of_a_source_survives_control() {
        for text in EVERY_PARAMETER {
            let command = Command::new("barge").subcommand(ServeArgs::augment_args(
                LogArgs::augment_args(Command::new("serve")),
            ));
            let source = format!("n={text}");
            let given = ["barge", "serve", "--control=unix:/c", &source];
            let matches = command.try_get_matches_from(given).expect("valid");
            let (_, serve) = matches.subcommand().expect("one");
            let config = Config::of_command_line(serve).expect("valid");
            let written = config.text();
            let again = Config::parse(Path::new("again"), &written).expect("valid");
            let parsed = &again.shares()[0].source.1;
            let expected: Source = text.parse().expect("a source");
            assert_eq!(parsed.tree(), expected.tree(), "{text}");
            assert_eq!(again.text(), written);
            let shown = format!("{} {config:?}", parsed.shown());
            let kept = config.shares()[0].source.0.for_parser();
            assert!(!shown.contains("hush") && kept == *text, "{shown}");
        }
    }

    #[test]
    fn additions_and_removals_keep_the_rest() {
        let path = Path::new("barge.toml");
        let text = "9p = 'tcp:127.0.0.1:0'\nworkers = 3\n[[share]]\nname = 'a'\nsource = 'mem:'\n";
        let mut config = Config::parse(path, text).expect("valid");
        let before = config.text();
        let share = "[[share]]\nname = 'b'\nsource = '/b'\nclients = '*'\nvirtiofs = '/s'\n";
        let addition = Config::addition(share).expect("valid");
        let only = config.with_only(&addition).text();
        assert!(
            only.contains("workers = \"3\"") && !only.contains("9p"),
            "{only}"
        );
        config.add(addition);
        let whole = config.text();
        assert!(whole.contains("virtiofs = [\"b=/s\"]"), "{whole}");
        assert!(whole.contains("export = [\"/b *\"]"), "{whole}");
        assert_eq!(Config::parse(path, &whole).expect("valid").text(), whole);
        config.remove_share("b");
        config.remove_settings(|key, value| key == "virtiofs" && value == "b=/s");
        assert_eq!(config.text(), before);
        assert!(Config::addition("workers = 3\n").is_err());
        assert!(Config::addition("export = '/a *'\n").is_err());
    }

    #[test]
    fn a_json_object_is_a_table() {
        let object = r#"{"name": "a", "read-only": true, "virtiofs": ["/x"], "anon-uid": 7}"#;
        let toml = toml_of(&serde_json::from_str(object).expect("JSON")).expect("a table");
        let lines: Vec<_> = toml.lines().collect();
        assert!(lines.contains(&"\"read-only\" = true"), "{toml}");
        assert!(lines.contains(&"\"virtiofs\" = [\"/x\"]"), "{toml}");
        for bad in [
            r#"{"a": {}}"#,
            r#"{"a": null}"#,
            r#"{"a": [1]}"#,
            r#"{"a": 1.5}"#,
        ] {
            assert!(
                toml_of(&serde_json::from_str(bad).expect("JSON")).is_err(),
                "{bad}"
            );
        }
    }
}
