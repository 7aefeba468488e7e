//! barge.toml(5), generated from the definition of the command line.

use clap::Arg;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use super::schema::{Schema, ValueKind};
use super::{DEFAULT_PATH, schema};

/// An example to copy.
const EXAMPLE: &str = r#"9p = "tcp:0.0.0.0:5640"
nfs = "tcp:0.0.0.0:2049"
http = 5641

[[share]]
name = "data"
source = "/srv/data"
clients = ["10.0.0.0/8(rw)", "localhost(rw,no_root_squash)"]

[[share]]
name = "vm"
source = "/srv/vm.erofs"
read-only = true
virtiofs = "/run/barge/vm.sock"
"#;

/// Returns the man page.
pub(crate) fn page() -> String {
    let schema = Schema::get();
    let mut page = Roff::new();
    let title = ["barge.toml", "5", "", "barge"];
    page.control("TH", title);
    page.control("SH", ["NAME"]);
    page.text([roman("barge.toml - configuration file of barge serve")]);
    page.control("SH", ["DESCRIPTION"]);
    for text in [
        "The configuration file of `barge serve --config FILE`, in TOML. A key is the name of an option of barge-serve(1) without its dashes. Its value is a string or a number, true or false if the option takes no value, or an array if the option may be repeated.",
        "Each [[share]] table is a source to serve. Its options apply to this share; the same keys before all tables are defaults for all shares. A share without a name must be the only one, and is the whole tree. Shares with names are directories of one tree, even if there is only one. Relative paths start in the working directory of the server.",
        "SIGHUP reloads the file. New shares are served. Removed shares end: their files and handles return ESTALE until a share of the same name is back. Changes of read-only, squash, anon-uid, anon-gid, clients, limit and client-limit apply at once, to open files as well. A share with any other change ends and is served anew; clients of other shares are not affected. Addresses of 9P and NBD and sockets of devices are opened and closed. Other keys outside shares, referrals and images served over NBD change only at a restart, which the log mentions. If the file is invalid, the server keeps the previous configuration.",
    ] {
        page.control("PP", []);
        page.text([roman(text)]);
    }
    page.control("SH", ["SHARES"]);
    let own = [
        (
            schema::NAME,
            "a string",
            "Name for clients: letters, digits, '.', '_' and '-'",
        ),
        (
            schema::SOURCE,
            "a string",
            "Tree to serve, as SOURCE of barge-serve(1)",
        ),
        (
            schema::CLIENTS,
            ValueKind::List.expected(),
            "Clients that may use the share, and their options, as in exports(5): see export below",
        ),
    ];
    for (key, takes, text) in own {
        entry(&mut page, key, takes, text);
    }
    for key in schema.share_keys() {
        if let Some(arg) = schema.option(key) {
            option(&mut page, arg);
        }
    }
    page.control("SH", ["GLOBAL KEYS"]);
    for arg in schema.options() {
        let key = arg.get_long().expect("options have names");
        match schema.is_share_option(key) {
            true => entry(
                &mut page,
                key,
                &value_description(arg),
                "Default for all shares: see SHARES",
            ),
            false => option(&mut page, arg),
        }
    }
    page.control("SH", ["EXAMPLE"]);
    page.control("nf", []);
    for line in EXAMPLE.lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []);
    page.control("SH", ["FILES"]);
    page.text([roman(format!(
        "{DEFAULT_PATH}: the configuration of barge.service"
    ))]);
    page.control("SH", ["SEE ALSO"]);
    page.text([roman("barge-serve(1), barge-config(1), exports(5)")]);
    page.render()
}

fn option(page: &mut Roff, arg: &Arg) {
    let key = arg.get_long().expect("options have names");
    let help = arg.get_long_help().or(arg.get_help());
    let mut text = help.map(ToString::to_string).unwrap_or_default();
    let values = arg.get_possible_values();
    let values: Vec<_> = values.iter().map(|value| value.get_name()).collect();
    if !values.is_empty() && ValueKind::of(arg) != ValueKind::Flag {
        text.push_str(&format!(" [{}]", values.join(", ")));
    }
    let default: Vec<_> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    if !default.is_empty() && ValueKind::of(arg) == ValueKind::Single {
        text.push_str(&format!(" [default: {}]", default.join(", ")));
    }
    entry(page, key, &value_description(arg), &text);
}

/// Returns the value that the key of `arg` takes, as in help. The name of a source is omitted: it
/// is that of the share.
fn value_description(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let name = names.first().map_or("VALUE", |name| name.as_str());
    let name = name.trim_start_matches("[NAME=]");
    match ValueKind::of(arg) {
        ValueKind::Single => name.to_owned(),
        ValueKind::OptionalValue => format!("true, or {name}"),
        ValueKind::List => format!("{name}, or several in an array"),
        kind => kind.expected().to_owned(),
    }
}

fn entry(page: &mut Roff, key: &str, takes: &str, text: &str) {
    page.control("TP", []);
    let head: [Inline; 2] = [bold(key), roman(format!(" = {takes}"))];
    page.text(head);
    page.text([roman(text)]);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    #[test]
    fn the_example_is_a_file_and_the_page_has_every_key() {
        Config::parse(Path::new("example"), EXAMPLE).expect("it makes sense");
        let page = page();
        let schema = Schema::get();
        for key in schema.keys().into_iter().chain(schema.share_keys()) {
            let shown = key.replace('-', r"\-");
            assert!(
                key == schema::SHARE || page.contains(&format!("fB{shown}")),
                "{key}"
            );
        }
    }
}
