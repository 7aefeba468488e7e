use super::*;
use crate::serve::plan;

fn parse(text: &str) -> Result<Config, Vec<String>> {
    let parsed = Config::parse(Path::new("f"), text).and_then(plan::checked);
    parsed.map_err(|ConfigErrors(all)| all.iter().map(ToString::to_string).collect())
}

const SHARES: &str = "[[share]]\nname = 'a'\nsource = '/srv/a'\n";

#[test]
fn every_option_is_a_key_and_every_key_an_option() {
    let schema = Schema::get();
    for arg in schema.options() {
        let key = arg.get_long().expect("a long name");
        let value = match (ValueKind::of(arg), key) {
            (ValueKind::Flag, _) => "true",
            (ValueKind::Count, _) => "1",
            // Errors in values name the key.
            _ => "'\u{1}'",
        };
        let text = format!("{key} = {value}\n{SHARES}");
        if let Err(problems) = parse(&text) {
            let unknown = problems
                .iter()
                .find(|problem| problem.contains("an option of"));
            assert_eq!(unknown, None);
        }
    }
    for key in schema.share_keys() {
        let option = schema.option(key).is_some();
        assert_eq!(
            option,
            ![schema::NAME, schema::SOURCE, schema::CLIENTS].contains(&key),
            "{key}"
        );
    }
    for device in schema::DEVICE_OPTIONS {
        let arg = schema.option(device).expect("an option");
        let names = arg.get_value_names().expect("it takes something");
        assert!(names[0].starts_with("[NAME=]"), "{device}");
    }
}

/// The former names of options, which stay valid, and their names now.
const RENAMED: [(&str, &str, &str); 15] = [
    ("msize", "9p-msize", "8192"),
    ("no-lock-wait", "9p-no-lock-wait", "true"),
    ("hand-over-files", "9p-fd-passing", "true"),
    ("rpcbind", "nfs-rpcbind", "'tcp:127.0.0.1:1111'"),
    ("no-read-plus", "nfs-no-read-plus", "true"),
    ("delegations", "nfs-delegations", "true"),
    ("state-dir", "nfs-state-dir", "'/s'"),
    ("cache", "virtiofs-cache", "'never'"),
    ("writeback", "virtiofs-writeback", "true"),
    ("allow-direct-io", "virtiofs-allow-direct-io", "true"),
    ("tmpfile", "virtiofs-tmpfile", "true"),
    ("no-killpriv-v2", "virtiofs-no-killpriv-v2", "true"),
    ("killpriv-v2", "virtiofs-killpriv-v2", "true"),
    ("posix-acl", "virtiofs-posix-acl", "'never'"),
    (
        "no-announce-submounts",
        "virtiofs-no-announce-submounts",
        "true",
    ),
];

#[test]
fn former_names_of_options_stay_valid() {
    let schema = Schema::get();
    let hidden = schema.options().flat_map(|arg| {
        let aliases = arg.get_aliases().unwrap_or_default();
        aliases
            .into_iter()
            .map(move |alias| (alias, arg.get_long()))
    });
    let mut hidden: Vec<_> = hidden.collect();
    let mut renamed = RENAMED.map(|(old, new, _)| (old, Some(new)));
    hidden.sort_unstable();
    renamed.sort_unstable();
    assert_eq!(hidden, renamed);

    for (old, new, value) in RENAMED {
        let on_the_command_line = |name: &str| {
            let argument = match value {
                "true" => format!("--{name}"),
                value => format!("--{name}={}", value.trim_matches('\'')),
            };
            let nfs = "--nfs=tcp:127.0.0.1:1".to_owned();
            schema.parse(&[nfs, argument]).expect(name)
        };
        assert_eq!(on_the_command_line(old), on_the_command_line(new), "{old}");

        let nfs = "nfs = 'tcp:127.0.0.1:1'\n";
        let shown = |name: &str| {
            let config = parse(&format!("{nfs}{name} = {value}\n{SHARES}")).expect(name);
            config.to_toml()
        };
        assert_eq!(shown(old), shown(new), "{old}");
        assert!(shown(old).contains(&format!("\n{new} = ")), "{old}");
        let both = format!("{nfs}{old} = {value}\n{new} = {value}\n{SHARES}");
        let expected = format!("f:2:1: {old}: expected one name of the option, got {new} too");
        assert_eq!(parse(&both).expect_err(old), [expected]);
    }

    let config = parse(&format!("{SHARES}hand-over-files = true\n")).expect("an option of shares");
    assert!(config.to_toml().ends_with("\n9p-fd-passing = true\n"));
}

#[test]
fn all_problems_are_told_with_their_places() {
    let text = "9p = 'tcp:x'\nnfs-lese = 5\nsquash = 'al'\nread-only = 'yes'\n9p-msize = 1\nname = 'x'\n[[share]]\nname = 'a/b'\n[[share]]\nsource = 'mem:'\nhttp = 5641\nclients = 'nobody(rw)'\n";
    let problems = parse(text).expect_err("it makes no sense");
    let expected = [
        ("f:1:6: 9p: ", "tcp:"),
        (
            "f:2:1: nfs-lese: expected an option of barge serve; ",
            "did you mean nfs-lease?",
        ),
        ("f:3:10: squash: ", "none, remote-root, root, all, got 'al'"),
        ("f:4:13: read-only: ", "expected true or false, got string"),
        ("f:5:12: 9p-msize: ", "4096"),
        ("f:6:1: name: ", "expected only in a [[share]]"),
        ("f:7:1: ", "expected a source"),
        ("f:8:8: name: ", "letters"),
        ("f:11:1: http: ", "before all [[share]] tables"),
        ("f:12:11: export: ", "nobody"),
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for (problem, (prefix, what)) in problems.iter().zip(expected) {
        assert!(
            problem.starts_with(prefix) && problem.contains(what),
            "{problem}"
        );
    }
}

#[test]
fn what_is_no_toml_has_a_place() {
    let problems = parse("9p = [\n'tcp:127.0.0.1:1'\nnfs = ").expect_err("it is cut");
    assert!(problems[0].starts_with("f:"), "{problems:?}");
    assert!(
        problems.iter().all(|problem| !problem.contains('\n')),
        "{problems:?}"
    );
}

#[test]
fn what_makes_no_sense_together_is_told() {
    for (text, why) in [
        (String::new(), "expected a [[share]]"),
        (format!("{SHARES}{SHARES}"), "two sources are named 'a'"),
        (format!("{SHARES}[[share]]\nsource='mem:'\n"), "need names"),
        (format!("nfs-tls-cert = 'c'\n{SHARES}"), "requires nfs"),
        (
            format!("overlay = 'o'\n{SHARES}[[share]]\nname='b'\nsource='mem:'\n"),
            "exactly one SOURCE",
        ),
        (
            format!("{SHARES}verify-key='k'\nblock='/s,file=f'\n"),
            "block",
        ),
        (format!("export = '/b *(ro)'\n{SHARES}"), "'/b'"),
    ] {
        let problems = parse(&text).expect_err(&text);
        assert!(
            problems.len() == 1 && problems[0].contains(why),
            "{problems:?}"
        );
    }
}

#[test]
fn a_share_has_its_own_word_and_what_it_shows_is_the_same_file() {
    let text = format!(
        "read-only = true\nsquash = 'all'\nverbose = 2\nnfs-rpcbind = true\nnfs = 'tcp:127.0.0.1:1'\n{SHARES}read-only = false\nmap-uid = ['0:1:2', '5:6:7']\nvirtiofs = '/s'\nclients = ['*(ro)', 'localhost(rw)']\n"
    );
    let config = parse(&text).expect("it makes sense");
    let own = config.share_settings(&config.shares[0]);
    let keys: Vec<_> = own.iter().map(|setting| setting.key.as_str()).collect();
    assert!(
        !keys.contains(&"read-only") && keys.contains(&"squash"),
        "{keys:?}"
    );
    let shown = config.to_toml();
    for line in [
        "read-only = true",
        "9p-msize = \"4M\"",
        "verbose = 2",
        "nfs-rpcbind = true",
        "virtiofs = [\"a=/s\"]",
        "export = [\"/a *(ro) localhost(rw)\"]",
        "read-only = false",
        "map-uid = [\"0:1:2\", \"5:6:7\"]",
    ] {
        assert!(
            shown.lines().any(|shown| shown == line),
            "{line} in\n{shown}"
        );
    }
    assert_eq!(
        parse(&shown).expect("what is shown is a file").to_toml(),
        shown
    );
}

#[test]
fn what_takes_a_restart_is_what_is_no_share() {
    let config = |text: &str| parse(&format!("{text}\n{SHARES}")).expect(text);
    let old = config("nfs = 'tcp:127.0.0.1:1'");
    let new = config("nfs = 'tcp:127.0.0.1:2'\nread-only = true\nexport = '/a *(ro)'\nworkers = 4");
    assert_eq!(new.changed_keys(&old), ["nfs", "workers"]);
    let opening = |config: &Config| config.opening_settings(&config.shares[0]);
    assert_eq!(opening(&old), opening(&new));
    let terms = "read-only = true\nsquash = 'all'\nanon-uid = 5\nanon-gid = 6";
    let limits = "limit = 'ops=7'\nclient-limit = 'bytes=1M,burst=1s'";
    let terms = config(&format!("{terms}\n{limits}"));
    assert_eq!(opening(&old), opening(&terms));
    assert_ne!(opening(&old), opening(&config("identity = 'fixed'")));
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "([a-z9-]{1,9} ?= ?(true|1|'[^']{0,9}'|\\[\\]|\"\\PC{0,5}\")\n|\\[\\[share\\]\\]\n|source = 'mem:'\n|\\PC{0,9}){0,9}") {
        let _ = parse(&text);
    }

    #[test]
    fn strings_are_shown_as_they_are(text in "\\PC{0,20}|[\\x00-\\x7f]{0,20}") {
        let line = format!("run = {}\n{SHARES}", quoted(&text));
        let config = parse(&line).expect("a string");
        proptest::prop_assert_eq!(config.settings[0].value.as_deref(), Some(&*text));
    }
}
