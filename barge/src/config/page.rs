//! barge.toml(5), generated from the definition of the command line.

use clap::Arg;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use super::schema::{Kind, Schema};
use super::{USUAL, schema};

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
    let schema = Schema::new();
    let mut page = Roff::new();
    let title = ["barge.toml", "5", "", "barge"];
    page.control("TH", title);
    page.control("SH", ["NAME"]);
    page.text([roman("barge.toml - what barge serve is told by a file")]);
    page.control("SH", ["DESCRIPTION"]);
    for text in [
        "A file of TOML for `barge serve --config FILE`. A key is an option of barge-serve(1) without its dashes, and takes what that takes: a string or a number; true or false where the option takes nothing; an array where it may be repeated.",
        "What is served is in tables [[share]]. Options that a share has of its own hold for that one; the same above all tables hold for shares that say nothing else. A share without a name is the only one, and the whole tree. Others are directories of one tree, even if there is just one. Paths that are not absolute begin where the program was started.",
        "On SIGHUP the file is read again. Shares that come are served, those that go are ended: whatever clients have of them answers ESTALE, their handles too, until a share of this name is back. read-only, squash, anon-uid, anon-gid and clients hold at once, for open files too. A share that is changed in anything else is ended, and begun anew. Clients of all others notice nothing. Anything outside shares takes a restart, and so do sockets of devices and referrals: the log says so. An image that is a disk stays that until then. A file that makes no sense changes nothing.",
    ] {
        page.control("PP", []);
        page.text([roman(text)]);
    }
    page.control("SH", ["SHARES"]);
    let own = [
        (
            schema::NAME,
            "a string",
            "What clients know it by: letters, digits, '.', '_' and '-'",
        ),
        (
            schema::SOURCE,
            "a string",
            "What it is, as barge-serve(1) has it",
        ),
        (
            schema::CLIENTS,
            Kind::Many.expected(),
            "Who may use it, and how, as in exports(5): see export below",
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
    page.control("SH", ["ABOVE ALL SHARES"]);
    for arg in schema.options() {
        let key = arg.get_long().expect("options have names");
        match schema.is_of_share(key) {
            true => entry(&mut page, key, &takes(arg), "For all shares: see above"),
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
    page.text([roman(format!("{USUAL}: what barge.service serves"))]);
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
    if !values.is_empty() && Kind::of(arg) != Kind::Flag {
        text.push_str(&format!(" [{}]", values.join(", ")));
    }
    let default: Vec<_> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    if !default.is_empty() && Kind::of(arg) == Kind::One {
        text.push_str(&format!(" [default: {}]", default.join(", ")));
    }
    entry(page, key, &takes(arg), &text);
}

/// Returns the value that the key of `arg` takes, as in help. The name of a source is omitted: it
/// is that of the share.
fn takes(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let name = names.first().map_or("VALUE", |name| name.as_str());
    let name = name.trim_start_matches("[NAME=]");
    match Kind::of(arg) {
        Kind::One => name.to_owned(),
        Kind::OneOrUsual => format!("true, or {name}"),
        Kind::Many => format!("{name}, or several in an array"),
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
        let schema = Schema::new();
        for key in schema.keys().into_iter().chain(schema.share_keys()) {
            let shown = key.replace('-', r"\-");
            assert!(
                key == schema::SHARE || page.contains(&format!("fB{shown}")),
                "{key}"
            );
        }
    }
}
