//! Runs the pages of `docs/recipes` from top to bottom, as they are written, in namespaces of their
//! own.
//!
//! The word after `sh` at a block's head says how it runs: none (it succeeds), `serve` (it keeps
//! running and prints `ready`), or `elsewhere:` with a reason (it is not run here). Blocks in other
//! languages are not run. Stand-ins replace the other programs of a recipe: a guest has an empty
//! disk and stops before its first instruction, and moto is S3.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::geteuid;

/// Returns the path of the program: `$BARGE`, or the one built with this test.
fn program() -> PathBuf {
    let told = std::env::var_os("BARGE").map(PathBuf::from);
    told.unwrap_or_else(|| env!("CARGO_BIN_EXE_barge").into())
}

/// How a block is run.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Ends,
    Stays,
    Elsewhere,
}

/// A shell block and the number of its first line.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    line: usize,
    kind: Kind,
    text: String,
}

/// Parses the blocks of a page. An error describes a mistake in the page.
fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<Option<Block>> = None;
    for (at, line) in page.lines().enumerate() {
        let line_number = at + 1;
        match (line.strip_prefix("```"), &mut open) {
            (Some(head), None) => {
                let (language, how) = head.split_once(' ').unwrap_or((head, ""));
                let kind = match (language, how) {
                    ("sh", "") => Some(Kind::Ends),
                    ("sh", "serve") => Some(Kind::Stays),
                    ("sh", how)
                        if how
                            .strip_prefix("elsewhere: ")
                            .is_some_and(|why| !why.is_empty()) =>
                    {
                        Some(Kind::Elsewhere)
                    }
                    ("sh" | "", _) => {
                        return Err(format!(
                            "line {line_number}: '{head}' says not how it is run"
                        ));
                    }
                    _ => None,
                };
                open = Some(kind.map(|kind| Block {
                    line: line_number,
                    kind,
                    text: String::new(),
                }));
            }
            (Some(_), Some(_)) => blocks.extend(open.take().flatten()),
            (None, Some(Some(block))) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, _) => {}
        }
    }
    match open {
        Some(_) => Err("a block does not end".into()),
        None => Ok(blocks),
    }
}

/// Returns one script of all blocks, which prints the line number of each before it runs.
fn script(blocks: &[Block]) -> String {
    let mut script = String::from("set -e\n");
    for block in blocks {
        let Block { line, text, .. } = block;
        match block.kind {
            Kind::Elsewhere => {}
            Kind::Ends => script.push_str(&format!("echo \"-- line {line}\" >&2\n{text}")),
            // Its output is read for as long as it runs.
            Kind::Stays => script.push_str(&format!(
                "echo \"-- line {line}\" >&2\n\
                 exec {{served}}< <({text})\n\
                 while IFS= read -r said <&$served || {{ echo 'not ready' >&2; exit 1; }}; [ \"$said\" != ready ]; do :; done\n"
            )),
        }
    }
    script
}

/// The setup before a page: loopback and private directories to mount at and to serve.
const BEFORE: &str = r#"
set -e
ip link set lo up
mount -t tmpfs none /srv
mount -t tmpfs none /mnt
mount -t tmpfs none /run
mount -t tmpfs none /usr/local/libexec 2>/dev/null || true
mkdir /srv/share /srv/share/dir
echo hello > /srv/share/hello
echo deep > /srv/share/dir/file
if [ -n "$PAGE_WANTS_BUCKET" ]; then
    exec {moto}< <(exec moto_server -H 127.0.0.1 -p 5000 2>&1)
    while IFS= read -r said <&$moto; do case $said in *"Running on"*) break;; esac; done
    curl -sSf -X PUT "$AWS_ENDPOINT_URL/images"
fi
"#;

/// Stand-ins for other programs, by name.
const STANDING_IN: [(&str, &str); 2] = [
    // The machine stops before its first instruction, with its devices connected to their servers.
    (
        "qemu-system-x86_64",
        "#!/bin/sh\necho quit | exec /usr/bin/qemu-system-x86_64 \"$@\" -S -display none -monitor stdio\n",
    ),
    // `aws s3 cp FILE s3://BUCKET/KEY`
    (
        "aws",
        "#!/bin/sh\nexec curl -sSf -T \"$3\" \"$AWS_ENDPOINT_URL/${4#s3://}\"\n",
    ),
];

/// Returns the directory of the pages: `$RECIPES`, or the one of this tree.
fn pages() -> PathBuf {
    let told = std::env::var_os("RECIPES").map(PathBuf::from);
    told.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/recipes"))
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Runs a page that uses `programs`. Skips it with a message if these or namespaces are missing.
fn run(page: &str, programs: &[&str]) {
    let text = fs::read_to_string(pages().join(page)).expect("a page");
    let blocks = blocks(&text).unwrap_or_else(|mistake| panic!("{page}: {mistake}"));
    let missing = ["bash", "unshare", "ip"]
        .iter()
        .chain(programs)
        .find(|program| !has(program));
    if let Some(program) = missing {
        eprintln!("skipped: {page} takes {program}");
        return;
    }
    if !geteuid().is_root() {
        eprintln!("skipped: {page}: a network and mounts of its own take root");
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let bin = home.path().join("bin");
    fs::create_dir(&bin).expect("made");
    std::os::unix::fs::symlink(program(), bin.join("barge")).expect("linked");
    for (name, text) in STANDING_IN {
        vfs_testkit::write_program(bin.join(name), text);
    }
    fs::write(
        home.path().join("script"),
        BEFORE.to_owned() + &script(&blocks),
    )
    .expect("written");
    let disk = fs::File::create(home.path().join("guest.qcow2"));
    disk.and_then(|disk| disk.set_len(1 << 20)).expect("a disk");
    let path = std::env::var("PATH").expect("set");
    let wants_bucket = if text.contains("s3://") { "yes" } else { "" };
    let output = Command::new("unshare")
        .args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .args(["bash", "script"])
        .current_dir(&home)
        .stdin(Stdio::null())
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("HOME", home.path())
        .env("STATE_DIRECTORY", home.path().join("state"))
        .env("PAGE_WANTS_BUCKET", wants_bucket)
        .env("AWS_ENDPOINT_URL", "http://127.0.0.1:5000")
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .env("AWS_REGION", "us-east-1")
        .output()
        .expect("runs");
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{page}: {}\n{}\n{}",
        output.status,
        told(&output.stdout),
        told(&output.stderr)
    );
    // All blocks ran: the script did not end early.
    let ran = told(&output.stderr).matches("-- line ").count();
    let wanted = blocks
        .iter()
        .filter(|block| block.kind != Kind::Elsewhere)
        .count();
    assert_eq!(ran, wanted, "{page}");
    assert!(wanted > 0, "{page}: nothing of it is run");
}

#[test]
fn qemu() {
    run("qemu.md", &["qemu-system-x86_64"]);
}

#[test]
fn cloud_hypervisor() {
    run("cloud-hypervisor.md", &[]);
}

#[test]
fn kata() {
    run("kata.md", &[]);
}

#[test]
fn firecracker() {
    run("firecracker.md", &[]);
}

#[test]
fn containers() {
    run("containers.md", &["bwrap", "fusermount3"]);
}

#[test]
fn containerd() {
    run("containerd.md", &[]);
}

#[test]
fn nfs_clients() {
    run("nfs-clients.md", &["rpcinfo", "showmount"]);
}

#[test]
fn nfs_failover() {
    run("nfs-failover.md", &["etcd", "etcdctl"]);
}

/// The two servers of a page, each in a network namespace with `eth0` on a bridge, and one member
/// of etcd. `$1` is the directory of the page's files. Prints the time from the end of the active
/// server to the next listing.
const TWO_SERVERS: &str = r#"
set -e
dir=$1
mount -t tmpfs none /srv
mkdir /srv/share
echo hello > /srv/share/hello
mount -t tmpfs none /usr/local/sbin
install -m 755 "$dir/nfs-listens" /usr/local/sbin/nfs-listens
ip link set lo up
ip link add lan type bridge
ip addr add 192.0.2.21/24 dev lan
ip link set lan up
etcd --data-dir "$dir/etcd" --listen-client-urls http://192.0.2.21:2379 \
    --advertise-client-urls http://192.0.2.21:2379 >"$dir/etcd.log" 2>&1 &
# barge ls connects from any port.
sed -i 's/,192.0.2.22:2379,192.0.2.23:2379//; s/(rw,/(rw,insecure,/' "$dir/barge.toml"
own=$(readlink /proc/self/ns/net)
for number in 1 2; do
    unshare -n sleep infinity &
    holder[number]=$!
    until [ "$(readlink /proc/$!/ns/net)" != "$own" ]; do :; done
    ip link add nfs$number type veth peer name eth0 netns $!
    ip link set nfs$number master lan up
    in[number]="nsenter -t $! -n"
    ${in[number]} ip link set lo up
    ${in[number]} ip addr add 192.0.2.1$number/24 dev eth0
    ${in[number]} ip link set eth0 up
    ${in[number]} sh -c 'echo 1 >/proc/sys/net/ipv4/ip_nonlocal_bind'
    ${in[number]} keepalived --dont-fork --log-console --use-file "$dir/keepalived.conf" \
        --pid "$dir/keepalived-$number" --vrrp_pid "$dir/vrrp-$number" >"$dir/keepalived-$number.log" 2>&1 &
done
serve() {
    # As systemd does: again, whenever it ends.
    while [ ! -e "$dir/down-$1" ]; do
        STATE_DIRECTORY=$dir/state-$1 ${in[$1]} barge serve --config "$dir/barge.toml" >>"$dir/barge-$1.log" 2>&1 &
        echo $! >"$dir/pid-$1"
        wait $! || :
        sleep 1
    done
}
listed() { timeout 1 barge ls nfs://192.0.2.10/data/ 2>/dev/null | grep -q hello; }
serve 1 &
until listed; do sleep 0.1; done
mkdir -m 700 "$dir/state-2"
cp -p "$dir/state-1/handle-key" "$dir/state-2/"
serve 2 &
until grep -q standby "$dir/barge-2.log"; do sleep 0.1; done
touch "$dir/down-1"
kill -KILL "$(cat "$dir/pid-1")"
killed=$(date +%s%N)
until ${in[2]} ip -o addr show eth0 | grep -q 192.0.2.10 && listed; do sleep 0.1; done
echo "served again after $(( ($(date +%s%N) - killed) / 1000000 )) ms"
! ${in[1]} ip -o addr show eth0 | grep -q 192.0.2.10
"#;

/// Returns the first block of a page in this language.
fn block_in(page: &str, language: &str) -> String {
    let head = format!("\n```{language}\n");
    let (_, rest) = page.split_once(&head).expect("a block");
    let (block, _) = rest.split_once("```").expect("its end");
    block.into()
}

#[test]
fn keepalived_moves_the_address_of_nfs_failover() {
    let programs = [
        "bash",
        "unshare",
        "nsenter",
        "ip",
        "ss",
        "etcd",
        "keepalived",
    ];
    if let Some(program) = programs.iter().find(|program| !has(program)) {
        return eprintln!("skipped: this takes {program}");
    }
    if !geteuid().is_root() {
        return eprintln!("skipped: networks of its own take root");
    }
    let page = fs::read_to_string(pages().join("nfs-failover.md")).expect("a page");
    let home = tempfile::tempdir().expect("a directory");
    for (file, language) in [
        ("barge.toml", "toml"),
        ("keepalived.conf", "conf"),
        ("nfs-listens", "bash"),
    ] {
        fs::write(home.path().join(file), block_in(&page, language)).expect("written");
    }
    let bin = home.path().join("bin");
    fs::create_dir(&bin).expect("made");
    std::os::unix::fs::symlink(program(), bin.join("barge")).expect("linked");
    let path = std::env::var("PATH").expect("set");
    let output = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child"])
        .args([
            "--mount-proc",
            "timeout",
            "120",
            "bash",
            "-c",
            TWO_SERVERS,
            "-",
        ])
        .arg(home.path())
        .stdin(Stdio::null())
        .env("PATH", format!("{}:{path}", bin.display()))
        .output()
        .expect("runs");
    let logs = [
        "barge-1.log",
        "barge-2.log",
        "keepalived-1.log",
        "keepalived-2.log",
    ]
    .map(|log| fs::read_to_string(home.path().join(log)).unwrap_or_default());
    assert!(
        output.status.success(),
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr),
        logs.join("\n--\n")
    );
    println!("{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn plan9() {
    run("plan9.md", &[]);
}

#[test]
fn unikernels() {
    run("unikernels.md", &["qemu-img"]);
}

#[test]
fn fleet() {
    run("fleet.md", &["openssl", "curl", "moto_server"]);
}

#[test]
fn ci() {
    run("ci.md", &[]);
}

#[test]
fn every_page_is_run_and_listed() {
    let list = fs::read_to_string(pages().join("README.md")).expect("a page");
    let tests = include_str!("recipes.rs");
    for page in fs::read_dir(pages()).expect("listed").flatten() {
        let name = page.file_name().into_string().expect("text");
        if name != "README.md" {
            assert!(
                list.contains(&format!("]({name})")),
                "{name} is not in the list"
            );
            assert!(
                tests.contains(&format!("run(\"{name}\"")),
                "{name} is not run"
            );
        }
    }
}

#[test]
fn blocks_say_how_they_are_run() {
    let page = "a\n```sh\nx\ny\n```\n```sh serve\nz\n```\n```xml\n<a>\n```\n```sh elsewhere: there\nw\n```\n";
    let found = blocks(page).expect("good");
    let texts: Vec<_> = found
        .iter()
        .map(|block| (block.line, &*block.text))
        .collect();
    assert_eq!(texts, [(2, "x\ny\n"), (6, "z\n"), (12, "w\n")]);
    assert_eq!(found[2].kind, Kind::Elsewhere);
    let script = script(&found);
    assert!(script.contains("x\ny\n") && script.contains("<(z\n)") && !script.contains("w\n"));
    for bad in [
        "```sh elsewhere\n```\n",
        "```sh later\n```\n",
        "```\n```\n",
        "```sh\n",
    ] {
        assert!(blocks(bad).is_err(), "{bad}");
    }
}
