//! Writes the seed corpora of the targets to `seeds/`: the golden messages of the p9 crate, and
//! sessions with valid requests. Run `cargo run -p barge-fuzz --example seeds` after a change of
//! messages.

use std::fs;
use std::io;
use std::path::Path;

use p9::{Data, Datasync, Dialect, Extension, Fid, Names, QidType, Stat, Tag, Tmessage as T, stat};

/// A module at the path that the golden messages expect.
#[path = "."]
mod message {
    pub(crate) use p9::*;

    #[path = "."]
    pub(crate) mod tests {
        #[allow(dead_code, unreachable_pub)]
        #[path = "../../protocols/p9/src/message/tests/golden.rs"]
        mod golden;

        use p9::Dialect;

        /// Returns the encoded requests and replies of a dialect, each concatenated.
        pub(crate) fn golden(dialect: Dialect) -> [Vec<u8>; 2] {
            let (mut requests, mut replies) = (Vec::new(), Vec::new());
            for (message, dialects, _) in golden::requests() {
                if dialects.contains(&dialect) {
                    message.encode(dialect, golden::TAG, &mut requests);
                }
            }
            for (message, dialects, _) in golden::replies() {
                if dialects.contains(&dialect) {
                    message.encode(dialect, golden::TAG, &mut replies);
                }
            }
            [requests, replies]
        }
    }
}

/// URLs of stores, and variables of the environment.
const STORES: &[(&str, &str)] = &[
    (
        "s3",
        "s3://bucket/key?region=eu-1\0AWS_ACCESS_KEY_ID=id\0AWS_SECRET_ACCESS_KEY=key\0\
         AWS_SESSION_TOKEN=token\0AWS_REGION=eu-central-1",
    ),
    (
        "s3-endpoint",
        "s3://bucket/dir/key\0AWS_ENDPOINT_URL=http://minio:9000\0AWS_SKIP_SIGNATURE=true\0\
         AWS_DEFAULT_REGION=us-east-1\0AWS_VIRTUAL_HOSTED_STYLE_REQUEST=true",
    ),
    (
        "gs",
        "gs://bucket/key\0GOOGLE_SERVICE_ACCOUNT_KEY={\"type\": \"service_account\", \
         \"private_key\": \"key\", \"private_key_id\": \"id\", \"client_email\": \"me@x\"}\0\
         GOOGLE_BASE_URL=http://localhost:4443",
    ),
    (
        "az",
        "az://container@account/key\0AZURE_STORAGE_ACCOUNT_KEY=c2VjcmV0\0\
         AZURE_STORAGE_ACCOUNT_NAME=account",
    ),
    (
        "az-secret",
        "az://container/key\0AZURE_STORAGE_ACCOUNT_NAME=account\0AZURE_STORAGE_CLIENT_ID=id\0\
         AZURE_STORAGE_CLIENT_SECRET=secret\0AZURE_STORAGE_TENANT_ID=tenant\0\
         AZURE_STORAGE_SAS_KEY=sig=x",
    ),
    (
        "https",
        "https://user@host.example/dir/image?signature=x\0AWS_REGION=eu-1",
    ),
];

fn main() -> io::Result<()> {
    for dialect in Dialect::ALL {
        let [requests, replies] = message::tests::golden(dialect);
        write("p9_decode", &format!("{dialect}-requests"), &requests)?;
        write("p9_decode", &format!("{dialect}-replies"), &replies)?;
        write(
            "p9_client",
            &dialect.to_string(),
            &answers(dialect, &replies),
        )?;
    }
    write("p9_recovery", "lost", &lost())?;
    write("disk_cache", "damaged", &damaged())?;
    write(
        "oci_layout",
        "index",
        &[b"\0", &br#"{"manifests":[]}"#[..]].concat(),
    )?;
    write("oci_layout", "layers", &layers())?;
    for (name, text) in REGISTRY {
        write("registry_text", name, text.as_bytes())?;
    }
    for (name, text) in STORES {
        write("store_environment", name, text.as_bytes())?;
    }
    write("overlay_directory", "marks", &marks())?;
    write("agent_lines", "conversation", AGENT.as_bytes())?;
    write("broker_requests", "all", &requests())?;
    write("change_events", "rename", &rename())?;
    write("config_file", "shares", CONFIG.as_bytes())?;
    write("control_requests", "share", CONTROL[0].as_bytes())?;
    write("control_requests", "drain", CONTROL[1].as_bytes())?;
    write("snapshotter_requests", "image", SNAPSHOTS.as_bytes())?;
    write("fuse_state", "mount", &barge_fuzz::fuse_state::saved())?;
    write("p9_state", "session", &barge_fuzz::p9_state::saved())?;
    write("state_files", "clients", &[1, 0, 0, 3, 2, 7, 8])?;
    write("state_files", "names", &[0, 0, 0, 20, 2, 7, 8, 0, 0, 40, 0])?;
    write("fuse_takeover", "resent", &taken_over())?;
    write("gss_records", "services", &gss::services())?;
    write("gss_records", "changed", &gss::changed())?;
    write("gss_records", "fragments", &gss::fragments())?;
    write("nfs_client", "segments", &pieces())?;
    write("nfs_session", "v3", &nfs3())?;
    write("nfs_session", "v4.2", &nfs42())?;
    let [new, queue_runs] = barge_fuzz::suspended::suspended();
    write("suspended_device", "new", &new)?;
    write("suspended_device", "queue", &queue_runs)?;
    write("tls_records", "client-hello", &tls::client_hello())?;
    write("tls_records", "server", &tls::steps(0b0_1010))?;
    write("tls_records", "client", &tls::steps(0b0_0011))?;
    write("vhost_user_messages", "queue", &vhost_user::queue())?;
    write("vhost_user_messages", "regions", &vhost_user::regions())?;
    write(
        "vhost_user_messages",
        "descriptors",
        &vhost_user::descriptors(),
    )?;
    write("vhost_user_messages", "beyond", &vhost_user::beyond())?;
    write("vhost_user_messages", "early", &vhost_user::early())?;
    write("virtqueue_rings", "requests", &queue())?;
    write("virtqueue_rings", "elsewhere", &queue_elsewhere())?;
    write("virtqueue_rings", "9p", &queue_9p())?;
    write("p9_session", "9P2000.L-files", &linux_files())?;
    write("p9_session", "9P2000.L-names", &linux_names())?;
    write("p9_session", "9P2000.L-locks", &linux_locks())?;
    write("p9_session", "9P2000.u", &old(Dialect::Unix))?;
    write("p9_session", "9P2000", &old(Dialect::Plan9))
}

/// A script of `barge_fuzz::fuse::takeover`: a directory is made and a file is created and locked,
/// a record changes, and the client sends all of it again.
fn taken_over() -> Vec<u8> {
    let request =
        |opcode: u8, node: u8, args: &[u8]| [&[opcode, node, args.len() as u8], args].concat();
    let lock = [&[1][..], &[0; 15], &[0; 8], &[9], &[0; 7], &[1], &[0; 15]].concat();
    let requests = [
        request(9, 1, b"\xff\x01\0\0\0\0\0\0d\0"),
        request(35, 1, b"\x42\0\0\0\xa4\x81\0\0\0\0\0\0\0\0\0\0f\0"),
        request(32, 3, &lock),
        request(1, 1, b"f\0"),
    ];
    let mut script = vec![requests.len() as u8];
    script.extend(requests.concat());
    // The flags of the open file, and the state of a request.
    script.push(2);
    script.extend([2, 2, 3, 0, 0, 0, 0, 0, 0, 0]);
    script.extend([4, 25, 0, 0, 0, 0, 1, 0, 0, 0]);
    for request in requests {
        script.push(1);
        script.extend(request);
    }
    script
}

/// A script of `barge_fuzz::recovery`: all requests are made and answered, then the server is lost
/// and another one connects, twice.
fn lost() -> Vec<u8> {
    let steps = (0..20u8).flat_map(|kind| [0, kind % 5, 0, kind % 3, 1, 2, kind, 3, 0, 0, 1]);
    let lost = [6, 0, 1, 2, 3, 7].into_iter();
    let others = (0..200u8).map(|at| at % 8);
    let whole: Vec<u8> = steps.chain(lost).chain(others).collect();
    [&whole[..], &whole].concat()
}

/// A script of `barge_fuzz::disk_cache`. Bytes of each file of a copy are changed and its checksum
/// corrected; it is truncated, replaced, and exchanged for the other file, next to names of the
/// same kind. Then the contents are others.
fn damaged() -> Vec<u8> {
    let of_each = (0..2u8).flat_map(|file| {
        [
            &[file, 1, 100, 0, 2, b'?', b'!', file, 0][..],
            &[file, 1, 100, 0, 2, b'?', b'!', file, 3, file, 0],
            &[file, 2, 9, 0, 4, file, 0, file, 4, 3, 1, 2, 3, file, 0],
            &[file, 6, 1 - file, file, 0],
        ]
        .concat()
    });
    let named = b"0123456789abcdef0123456789abcdef.sums";
    let named = [&[0, 5, named.len() as u8][..], named].concat();
    let other = b"\0\x07\x05other\0\0";
    let script = of_each.chain(named).chain(*other);
    [15, 1].into_iter().chain(script).collect()
}

/// The requests for an image with a layer, a container and its end; with filters and labels of most
/// kinds.
const SNAPSHOTS: &str = concat!(
    "prepare\tk/1/extract sha256:aa\t\tcontainerd.io/snapshot.ref=sha256:",
    "1111111111111111111111111111111111111111111111111111111111111111\t",
    "containerd.io/snapshot/cri.layer-digest=sha256:",
    "1111111111111111111111111111111111111111111111111111111111111111\t",
    "containerd.io/snapshot/cri.image-ref=localhost:5000/a/b:1\n",
    "commit\tk/1/extract sha256:aa\tl\tcontainerd.io/snapshot/uidmapping=0:0:1\n",
    "prepare\tc\tl\tcontainerd.io/snapshot/uidmapping=0:1000:65536,65536:1:2\n",
    "view\tv\tl\n",
    "mounts\tc\n",
    "update\tc\t\tlabels.a=b\tlabels.a\n",
    "list\tlabels.\"a b\"==c,kind!=active\tname~=/^[a-z]+$/\n",
    "usage\tc\n",
    "remove\tl\n",
    "remove\tc\n",
    "rebase\tc\tl\n",
    "remove\tv\n",
);

/// Lines of an agent and of its server. The first byte is the size of pieces.
const AGENT: &str = concat!(
    "!",
    r#"{"hello":{"version":1,"share":"a","session":"00ff"}}"#,
    "\n",
    r#"{"challenge":{"session":"00ff","uid":2061008128,"name":".barge-agent-7"}}"#,
    "\n",
    r#"{"found":{"session":"00ff"}}"#,
    "\n",
    r#"{"ready":{"session":"00ff"}}"#,
    "\n",
    r#"{"poke":{"id":1,"action":"create","path":"a/b","kind":"symlink","target":[255,0]}}"#,
    "\n",
    r#"{"done":{"id":1,"error":17}}"#,
    "\n",
    r#"{"poke":{"id":2,"action":"rename","path":"a","to":[195]}}"#,
    "\n",
    r#"{"poke":{"id":3,"action":"delete","path":"a","is_dir":true}}"#,
    "\n",
    r#"{"error":{"message":"no"}}"#,
    "\n",
);

/// Requests of the control socket.
const CONTROL: [&str; 2] = [
    r#"{"version":1,"id":7,"method":"share.add","params":{"share":{"name":"a","source":"/srv","read-only":true,"virtiofs":["/s"]}}}"#,
    r#"{"version":1,"id":"x","method":"endpoint.drain","params":{"address":"tcp:[::1]:1","timeout":3}}"#,
];

/// A configuration file with settings of most kinds.
const CONFIG: &str = r#"9p = ["tcp:[::]:5640", "unix:/run/9p"]
nfs = "tcp:127.0.0.1:2049"
nfs-vers = ["3", "4.2"]
http = 5641
memory = "64M"
max-connections = 100
handshake-timeout = 5
log-format = "json"

[[share]]
name = "data"
source = "/srv/data"
clients = ["10.0.0.0/8(rw)", "localhost(rw,no_root_squash)"]
readonly = false

[[share]]
name = "image"
source = "image:/srv/a.erofs"
readonly = true
"#;

/// A script of `barge_fuzz::broker`: requests of each kind, for named and other files and
/// addresses, and packets that are none.
fn requests() -> Vec<u8> {
    let texts = [
        r#"{"Listen":{"addr":"unix:DIR/socket","place":0}}"#,
        r#"{"Listen":{"addr":"unix:DIR/socket","place":1}}"#,
        r#"{"Listen":{"addr":"unix:DIR/other","place":0}}"#,
        r#"{"BindUdp":{"host":"127.0.0.1","port":0}}"#,
        r#"{"CallClient":{"to":"224.0.0.1","program":"Nsm"}}"#,
        r#"{"Read":{"path":{"Unix":CERT}}}"#,
        r#"{"Read":{"path":{"Unix":[47,101,116,99,47,112,97,115,115,119,100]}}}"#,
        r#"{"Create":{"path":{"Unix":CALLS}}}"#,
        r#"{"Create":{"path":{"Unix":[47,116,109,112,47,120]}}}"#,
        r#"{"Users":{"Find":{"key":{"Uid":0}}}}"#,
        r#"{"Users":{"GroupsOf":{"user":{"name":[114,111,111,116],"id":0,"gid":0}}}}"#,
        r#""Configuration""#,
        r#"{"Reloaded":{"status":"ready\nMAINPID=1"}}"#,
        r#"{"Ready":{"environment":[["LD_PRELOAD","/x"]]}}"#,
        r#""Parts""#,
        r#"{"Figures":{"part":"Whole","wanted":"Status"}}"#,
        "{",
        "",
    ];
    let packet = |text: &str| {
        [
            &[1],
            &(text.len() as u16).to_le_bytes()[..],
            text.as_bytes(),
        ]
        .concat()
    };
    texts.map(packet).concat()
}

/// A script of `barge_fuzz::oci`: a layer with a file, and one that removes it and hides the rest.
fn layers() -> Vec<u8> {
    let member = |name: &[u8]| {
        let mut header = vec![0; 512];
        header[..name.len()].copy_from_slice(name);
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(b"00000000000");
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        header
    };
    let names: [&[u8]; 3] = [b"file", b".wh.file", b".wh..wh..opq"];
    let layers = names.map(member);
    let [first, removed, opaque] = layers;
    let second = [removed, opaque].concat();
    let of = |layer: Vec<u8>| [&(layer.len() as u16).to_le_bytes()[..], &layer].concat();
    [vec![2], of(first), of(second)].concat()
}

/// An event of a rename: `struct fanotify_event_metadata`, and records with the old name, the new
/// name and the object.
fn rename() -> Vec<u8> {
    let mut records = Vec::new();
    for (kind, name) in [(10u8, &b"old\0"[..]), (12, b"new\0"), (1, b"")] {
        let len = 12 + 8 + 8 + name.len() as u16;
        records.extend([kind, 0]);
        records.extend(len.to_ne_bytes());
        records.extend([9; 8]);
        records.extend(8u32.to_ne_bytes());
        records.extend(1u32.to_ne_bytes());
        records.extend([kind; 8]);
        records.extend(name);
    }
    let mut event = Vec::new();
    event.extend((24 + records.len() as u32).to_ne_bytes());
    event.extend([3, 0]);
    event.extend(24u16.to_ne_bytes());
    event.extend(0x1000_0000u64.to_ne_bytes());
    event.extend((-1i32).to_ne_bytes());
    event.extend(7u32.to_ne_bytes());
    [event, records].concat()
}

/// Inputs of `barge_fuzz::registry`, one for each parser.
const REGISTRY: [(&str, &str); 8] = [
    (
        "reference",
        "roci://[::1]:5000/a/b__c:tag@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855/etc?plain_http=true&cache_dir=/c&cache_dir_size=1G",
    ),
    (
        "document",
        r#"d{"layers": [{"mediaType": "application/vnd.erofs.layer.v1", "size": 1, "digest": "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "annotations": {"vnd.barge.erofs.root": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}]}"#,
    ),
    (
        "signatures",
        r#"s{"layers": [{"mediaType": "application/vnd.dev.cosign.simplesigning.v1+json", "size": 241, "digest": "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "annotations": {"dev.cosignproject.cosign/signature": "AAEC"}}]}"#,
    ),
    (
        "payload",
        r#"p{"critical":{"identity":{"docker-reference":"h/r"},"image":{"docker-manifest-digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},"type":"cosign container image signature"},"optional":null}"#,
    ),
    (
        "key",
        "k-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt\n6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q==\n-----END PUBLIC KEY-----\n",
    ),
    (
        "hosts",
        "hserver = \"https://o\"\n[host.\"http://m:1/p\"]\ncapabilities = [\"pull\"]\nca = \"c\"\nclient = [[\"c\", \"k\"]]\nskip_verify = true\n[host.\"http://m:1/p\".header]\nx = [\"1\"]\n",
    ),
    (
        "config",
        r#"c{"auths": {"https://registry:5000/v1/": {"auth": "dTpw", "identitytoken": ""}}, "credsStore": "x"}"#,
    ),
    (
        "challenge",
        r#"wBasic realm="a \"b\"", Bearer realm="https://a/t",service=s,scope="repository:x:pull""#,
    ),
];

/// A script of `barge_fuzz::overlay`: files of each kind with marks, then changes of each kind.
fn marks() -> Vec<u8> {
    // In the root and in the directories below it, files with the names in turn.
    let files = (0..8u8).flat_map(|file| [file % 2, 1, 0, file % 6, file]);
    // Opaque, redirected, with another attribute.
    let marks = [0, 1, 5]
        .into_iter()
        .zip(0u8..)
        .flat_map(|(mark, at)| [1, at + 1, 1, mark, 0, at % 3]);
    let made = [0, 0, 3, 1, 1, 1, 0, 4, 0];
    let removed = [0, 0, 1, 0, 1, 1, 4, 1, 0];
    let renamed = [0, 0, 2, 0, 5, 0, 3, 2, 0, 4];
    let written = [1, 0, 0, 3, 1, 3, 0, 3];
    let changes = [&made[..], &removed, &renamed, &written].concat();
    [11].into_iter()
        .chain(files)
        .chain(marks)
        .chain(changes)
        .collect()
}

/// A script of `barge_fuzz::nfs_client`: results of all its requests, all zeros.
fn pieces() -> Vec<u8> {
    (0..21u8)
        .flat_map(|asked| [&[asked, 64, 0][..], &[0; 64], &[1]].concat())
        .collect()
}

/// A script of `barge_fuzz::nfs`: v3 calls with invalid handles.
fn nfs3() -> Vec<u8> {
    let handle = words(&[4, 0x0101_0101]);
    (0..22)
        .flat_map(|procedure| [&[0, procedure, 8][..], &handle].concat())
        .collect()
}

/// A script of `barge_fuzz::nfs`: a file is created, written, read, locked and closed with the
/// current stateid.
fn nfs42() -> Vec<u8> {
    let state = words(&[1, 0, 0, 0]);
    let owner = words(&[0, 0, 1, 0x6100_0000]);
    let operation = |number: u8, arguments: &[&[u8]]| {
        let arguments = arguments.concat();
        [&[number, arguments.len() as u8][..], &arguments].concat()
    };
    let name = words(&[1, 0x6600_0000]);
    let range = words(&[0, 0, 0, 4]);
    // OPEN for both, unchecked and without attributes, with a name.
    let open = [
        words(&[0, 3, 0]),
        owner.clone(),
        words(&[1, 0, 0, 0, 0]),
        name.clone(),
    ]
    .concat();
    let locker = [words(&[1, 0]), state.clone(), words(&[0]), owner].concat();
    let operations = [
        operation(58, &[&words(&[0])]),
        operation(18, &[&open]),
        operation(38, &[&state, &words(&[0, 0, 2, 4, 0x6162_6364])]),
        operation(25, &[&state, &words(&[0, 0, 8])]),
        operation(68, &[&state, &words(&[0, 0, 8])]),
        operation(69, &[&state, &words(&[0, 0, 1])]),
        operation(9, &[&words(&[2, 0x0010_011a, 0x00b0_a23a])]),
        operation(12, &[&words(&[2, 0]), &range, &locker]),
        operation(14, &[&words(&[2, 0]), &state, &range]),
        operation(24, &[]),
        operation(26, &[&words(&[0, 0, 0, 0, 512, 512, 0])]),
        operation(28, &[&name]),
    ];
    [&[98, operations.len() as u8][..], &operations.concat()].concat()
}

/// Encodes words as XDR.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn write(target: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(target);
    fs::create_dir_all(&dir)?;
    fs::write(dir.join(name), bytes)
}

/// A script of `barge_fuzz::client`: each of its requests is made and answered.
fn answers(dialect: Dialect, replies: &[u8]) -> Vec<u8> {
    use p9::Kind::*;
    const ASKED: [p9::Kind; 15] = [
        Read, Readdir, Write, Walk, Clunk, Getattr, Stat, Attach, Lopen, Open, Readlink, Statfs,
        Getlock, Remove, Hand,
    ];
    const MOST: u8 = 3;
    let place = |dialect| Dialect::ALL.iter().position(|&d| d == dialect);
    let number = place(dialect).map_or(0, |place| place as u8);
    // The offered version, the accepted version, and the first of the sizes.
    let mut script = vec![number, number + 1, 0];
    let mut rest = replies;
    while let Some(size) = rest.first_chunk().map(|size| u32::from_le_bytes(*size)) {
        let (reply, more) = rest.split_at(size as usize);
        rest = more;
        let kind = p9::Kind::of(reply[4]);
        let Some(asked) = ASKED.iter().position(|&asked| Some(asked) == kind) else {
            continue;
        };
        script.extend([0, MOST, asked as u8]);
        // Uses the first tag, which is then released.
        script.push(5);
        script.extend(&reply[..5]);
        script.extend([0, 0]);
        script.extend(&reply[7..]);
        script.extend([4, 0]);
    }
    script
}

/// Scripts of `barge_fuzz::rings`.
mod ring {
    use hostile::guest::{INIT, fuse_request};

    fn write(at: u16, bytes: &[u8]) -> Vec<u8> {
        let head = [&[2][..], &at.to_le_bytes(), &[bytes.len() as u8]].concat();
        [&head, bytes].concat()
    }

    fn descriptor(index: u8, at: u16, len: u32, flags: u8, next: u16) -> Vec<u8> {
        let mut bytes = vec![3];
        bytes.push(index);
        bytes.extend(at.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.push(flags);
        bytes.extend(next.to_le_bytes());
        bytes
    }

    /// Requests in sequence: INIT, MKDIR, LOOKUP, STATFS.
    pub(super) fn requests() -> Vec<u8> {
        let messages = [
            fuse_request(26, 2, 0, &INIT),
            fuse_request(9, 4, 1, b"\xff\x01\0\0\0\0\0\0a\0"),
            fuse_request(1, 6, 1, b"a\0"),
            fuse_request(17, 8, 1, b""),
        ];
        asked(&messages)
    }

    /// Submits messages one after the other.
    pub(super) fn asked(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut script = Vec::new();
        for (number, message) in (1u16..).zip(messages) {
            script.extend(write(0x8000, message));
            script.extend(descriptor(0, 0x8000, message.len() as u32, 1, 1));
            script.extend(descriptor(1, 0x9000, 512, 2, 0));
            script.push(4);
            script.extend(number.to_le_bytes());
            script.extend([number as u8 - 1, 0, 0, 5]);
        }
        script.push(7);
        script
    }

    /// The queue is set up again at the end of memory.
    pub(super) fn elsewhere() -> Vec<u8> {
        let mut script = vec![0, 0];
        for number in [64u16, 0x4000, 0x2001, 0x1001, 0] {
            script.extend(number.to_le_bytes());
        }
        script.extend([1, 16]);
        script
    }
}

/// Scripts of `barge_fuzz::gss`.
mod gss {
    /// A call with context 0: the service, the procedure with its arguments, the sequence number,
    /// the change and the fragments.
    fn call(service: u8, procedure: [u8; 2], arguments: &[u8], rest: [u8; 3]) -> Vec<u8> {
        let [sequence, change, fragments] = rest;
        let len = arguments.len() as u8;
        [
            &[80, 0, 0, service][..],
            &procedure,
            &[len],
            arguments,
            &[sequence, 0, change, fragments],
        ]
        .concat()
    }

    const INIT: [u8; 4] = [0, 0, 0, 0];
    const UNCHANGED: u8 = 100;

    /// Contexts are made in one step and two, and used with each service; calls are repeated, a
    /// context is destroyed, and the others expire.
    pub(super) fn services() -> Vec<u8> {
        let plain = [0, UNCHANGED, 0];
        // GETATTR, MKDIR, FSINFO; a compound; NULL; MOUNT.
        let name = [0, 0, 0, 1, b'a', 0, 0, 0, 0, 0, 0, 0];
        let calls = (0..3).flat_map(|service| {
            [
                call(service, [0, 1], &[], plain),
                call(service, [0, 9], &[&name[..], &[0; 20]].concat(), plain),
                call(service, [0, 19], &[], plain),
                call(service, [4, 10], &[], plain),
                call(service, [6, 0], &[], plain),
                call(service, [7, 1], &[0, 0, 0, 1, b'/', 0, 0, 0], plain),
            ]
            .concat()
        });
        let more = [0, 0, 3, 0, 0, 5, 0, 0];
        let repeated = [56, 3, 0, 56, 9, 0];
        let destroyed = [80, 0, 255, 1, 0, 0, UNCHANGED, 0];
        let calls: Vec<u8> = calls.collect();
        [
            &[2][..],
            &INIT,
            &more,
            &calls,
            &repeated,
            &destroyed,
            &call(0, [0, 1], &[], plain),
            &[32, 200],
            &call(1, [0, 1], &[], plain),
        ]
        .concat()
    }

    /// Each change of a call with each service, and other sequence numbers.
    pub(super) fn changed() -> Vec<u8> {
        let changes = [0, 1, 2, 3, 4, 16, 32, 36].into_iter().flat_map(|change| {
            (0..3).flat_map(move |service| {
                let sent = call(service, [0, 1], &[], [0, change, 0]);
                // The numbers that the change takes come before the fragments.
                [&sent[..sent.len() - 1], &[7, 1, 0]].concat()
            })
        });
        let sequences = [208, 224, 240]
            .into_iter()
            .flat_map(|kind| call(1, [0, 1], &[], [kind, UNCHANGED, 0]));
        let changes: Vec<u8> = changes.chain(sequences).collect();
        [&[2][..], &INIT, &INIT, &changes].concat()
    }

    /// Records of several fragments.
    pub(super) fn fragments() -> Vec<u8> {
        let calls = (0..3).flat_map(|service| {
            let sent = call(service, [0, 1], &[0; 40], [0, UNCHANGED, 243]);
            [&sent[..], &[30, 0, 40, 1]].concat()
        });
        let calls: Vec<u8> = calls.collect();
        [&[2][..], &INIT, &calls].concat()
    }
}

/// Scripts of `barge_fuzz::tls`.
mod tls {
    /// A ClientHello, as the only record: TLS 1.3, X25519, ECDSA with P-256, the target's protocol.
    pub(super) fn client_hello() -> Vec<u8> {
        let extension = |kind: u8, body: &[u8]| [&[0, kind, 0, body.len() as u8], body].concat();
        let share = [&[0, 36, 0, 29, 0, 32][..], &[9; 32]].concat();
        let extensions = [
            extension(43, &[2, 3, 4]),
            extension(10, &[0, 2, 0, 29]),
            extension(13, &[0, 2, 4, 3]),
            extension(51, &share),
            extension(16, b"\0\x05\x04fuzz"),
        ]
        .concat();
        let hello = [
            &[3, 3][..],
            &[7; 32],
            &[0, 0, 2, 0x13, 1, 1, 0],
            &[0, extensions.len() as u8],
            &extensions,
        ]
        .concat();
        let message = [&[1, 0, 0, hello.len() as u8], &hello[..]].concat();
        [&[0b1_0000, 22, message.len() as u8], &message[..]].concat()
    }

    /// Steps of each kind: with numbers of at least 64, no record is changed or cut.
    pub(super) fn steps(start: u8) -> Vec<u8> {
        let steps = (0..200u8).map(|step| 64 + (u16::from(step) * 37 % 192) as u8);
        [start].into_iter().chain(steps).collect()
    }
}

/// Scripts of `barge_fuzz::vhost_user`. A message is a step, the place of its request in the known
/// ones, its flags, its arguments and the change to it.
mod vhost_user {
    const UNCHANGED: u8 = 255;

    fn message(known: u8, arguments: &[u8]) -> Vec<u8> {
        [&[1, known, 120][..], arguments, &[UNCHANGED]].concat()
    }

    fn negotiate() -> Vec<u8> {
        [
            message(0, &[]),
            message(1, &[0, 0, 0, 0, 0, 0, 0, 0, 0]),
            message(15, &[]),
            message(16, &[0; 9]),
        ]
        .concat()
    }

    /// One region of all the memory, which is of 16 pages.
    fn table() -> Vec<u8> {
        message(4, &[1, 0, 0, 0, 0, 1])
    }

    /// Starts queue 0: size, base, addresses, events.
    fn start() -> Vec<u8> {
        let addresses = [0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0x10];
        [
            message(7, &[0, 6]),
            message(10, &[0, 0]),
            message(8, &addresses),
            message(12, &[0, 0]),
            message(13, &[0, 0]),
            message(18, &[0, 1]),
        ]
        .concat()
    }

    fn write(at: u16, bytes: &[u8]) -> Vec<u8> {
        [&[184][..], &at.to_le_bytes(), &[bytes.len() as u8], bytes].concat()
    }

    /// A queue with a request is started, served, stopped and started again; the memory is
    /// truncated meanwhile, and grows again.
    pub(super) fn queue() -> Vec<u8> {
        let descriptor = [0, 0x30, 0, 0, 1, 0, 0, 0, 16, 0, 0, 0, 2, 0, 0, 0];
        [
            vec![0],
            negotiate(),
            table(),
            start(),
            write(0, &descriptor),
            write(0x1002, &[1, 0, 0, 0]),
            vec![255],
            vec![168],
            message(11, &[0]),
            vec![168],
            start(),
            vec![255],
        ]
        .concat()
    }

    /// Regions are added and removed, and the configuration is read; then a request is refused.
    pub(super) fn regions() -> Vec<u8> {
        let region = |place: u8| [place, 0, 0, 0];
        [
            vec![0],
            negotiate(),
            message(25, &region(0)),
            message(25, &region(4)),
            message(25, &region(0)),
            message(26, &region(4)[..3]),
            message(24, &[]),
            message(21, &[0, 60, 0]),
            message(6, &[0; 17]),
        ]
        .concat()
    }

    /// A queue in a region of 16 pages, whose file has one.
    pub(super) fn beyond() -> Vec<u8> {
        const ONE_PAGE: u8 = 193;
        [
            vec![0],
            negotiate(),
            message(25, &[0, 0, 0, ONE_PAGE]),
            start(),
        ]
        .concat()
    }

    /// An event and a channel for requests of the device; then a request with 33 descriptors.
    pub(super) fn descriptors() -> Vec<u8> {
        const SOCKET: u8 = 19;
        [
            vec![0],
            negotiate(),
            message(14, &[0, 0]),
            message(20, &[SOCKET]),
            vec![1, 0, 120, 32, 33, 8, 0],
        ]
        .concat()
    }

    /// A message that arrives in two pieces with descriptors.
    pub(super) fn early() -> Vec<u8> {
        [
            &[255, 12, 120, 0, 0, UNCHANGED, 12, 1, 8][..],
            &queue()[1..],
        ]
        .concat()
    }
}

fn queue() -> Vec<u8> {
    [&[1][..], &ring::requests()].concat()
}

/// Requests to a 9P device: a file is created, written and read.
fn queue_9p() -> Vec<u8> {
    let (fid, newfid, names) = (ROOT, ONE, Names::new(&[]));
    let data = Data(&[b'd'; 200]);
    let requests = [
        T::Walk { fid, newfid, names },
        create(b"a"),
        T::Write {
            fid: ONE,
            offset: 0,
            data,
        },
        T::Read {
            fid: ONE,
            offset: 100,
            count: 300,
        },
    ];
    let messages = requests.map(|request| {
        let mut bytes = Vec::new();
        request.encode(Dialect::Linux, Tag(1), &mut bytes);
        bytes
    });
    [&[3][..], &ring::asked(&messages)].concat()
}

fn queue_elsewhere() -> Vec<u8> {
    [
        &[0][..],
        &ring::requests(),
        &ring::elsewhere(),
        &ring::requests(),
    ]
    .concat()
}

const ROOT: Fid = Fid(0);
const ONE: Fid = Fid(1);
const TWO: Fid = Fid(2);

/// A script of `barge_fuzz::session`: whole messages of both clients.
struct Script {
    dialect: Dialect,
    bytes: Vec<u8>,
}

impl Script {
    /// Begins a script in which both clients are attached.
    fn new(dialect: Dialect) -> Script {
        let start = match dialect {
            Dialect::Linux => 0b0000,
            Dialect::Unix => 0b0101,
            Dialect::Plan9 => 0b1010,
        };
        Script {
            dialect,
            bytes: vec![start],
        }
    }

    fn send(&mut self, client: u8, tag: u16, request: T<'_>) {
        self.bytes.push(client);
        request.encode(self.dialect, Tag(tag), &mut self.bytes);
    }

    fn walk(&mut self, client: u8, fid: Fid, newfid: Fid, names: &[&[u8]]) {
        let names = Names::new(names);
        self.send(client, 1, T::Walk { fid, newfid, names });
    }

    fn all(&mut self, requests: &[T<'_>]) {
        for request in requests {
            self.send(0, 1, *request);
        }
    }
}

fn create(name: &[u8]) -> T<'_> {
    T::Lcreate {
        fid: ONE,
        name,
        flags: 2,
        mode: 0o644,
        gid: 0,
    }
}

fn linux_files() -> Vec<u8> {
    let mut script = Script::new(Dialect::Linux);
    script.walk(0, ROOT, ONE, &[]);
    script.all(&[
        create(b"a"),
        T::Write {
            fid: ONE,
            offset: 3,
            data: Data(b"data"),
        },
        T::Read {
            fid: ONE,
            offset: 0,
            count: 9,
        },
        T::Getattr {
            fid: ONE,
            mask: 0x3fff,
        },
        T::Setattr {
            fid: ONE,
            valid: 0x1ff,
            mode: 0o600,
            uid: 1,
            gid: 1,
            size: 5,
            atime_sec: 1,
            atime_nsec: 1,
            mtime_sec: 1,
            mtime_nsec: 1,
        },
        T::Fsync {
            fid: ONE,
            datasync: Datasync(1),
        },
        T::Hand { fid: ONE },
        T::Statfs { fid: ONE },
        T::Clunk { fid: ONE },
    ]);
    script.walk(0, ROOT, ONE, &[b"a"]);
    script.all(&[
        T::Xattrcreate {
            fid: ONE,
            name: b"user.a",
            size: 2,
            flags: 0,
        },
        T::Write {
            fid: ONE,
            offset: 0,
            data: Data(b"xy"),
        },
        T::Clunk { fid: ONE },
    ]);
    script.walk(0, ROOT, ONE, &[b"a"]);
    script.all(&[
        T::Xattrwalk {
            fid: ONE,
            newfid: TWO,
            name: b"",
        },
        T::Read {
            fid: TWO,
            offset: 0,
            count: 100,
        },
        T::Remove { fid: ONE },
    ]);
    script.bytes
}

fn linux_names() -> Vec<u8> {
    let mut script = Script::new(Dialect::Linux);
    script.all(&[
        T::Mkdir {
            dfid: ROOT,
            name: b"a",
            mode: 0o755,
            gid: 0,
        },
        T::Symlink {
            fid: ROOT,
            name: b"b",
            target: b"/",
            gid: 0,
        },
        T::Mknod {
            dfid: ROOT,
            name: b"c",
            mode: 0o100644,
            major: 0,
            minor: 0,
            gid: 0,
        },
    ]);
    script.walk(0, ROOT, ONE, &[b"c"]);
    script.walk(0, ROOT, TWO, &[b"a", b"..", b"a"]);
    script.all(&[
        T::Link {
            dfid: TWO,
            fid: ONE,
            name: b"d",
        },
        T::Renameat {
            olddirfid: ROOT,
            oldname: b"b",
            newdirfid: TWO,
            newname: b"b",
        },
        T::Rename {
            fid: ONE,
            dfid: TWO,
            name: b"c",
        },
        T::Unlinkat {
            dirfid: TWO,
            name: b"d",
            flags: 0,
        },
        T::Clunk { fid: ONE },
    ]);
    script.walk(0, TWO, ONE, &[b"b"]);
    script.all(&[
        T::Readlink { fid: ONE },
        T::Lopen {
            fid: TWO,
            flags: 0o200000,
        },
        T::Readdir {
            fid: TWO,
            offset: 0,
            count: 4000,
        },
    ]);
    script.bytes
}

fn linux_locks() -> Vec<u8> {
    let mut script = Script::new(Dialect::Linux);
    script.walk(0, ROOT, ONE, &[]);
    script.send(0, 1, create(b"a"));
    script.walk(1, ROOT, ONE, &[b"a"]);
    script.send(1, 1, T::Lopen { fid: ONE, flags: 2 });
    let lock = |kind| T::Lock {
        fid: ONE,
        kind,
        flags: 1,
        start: 0,
        length: 0,
        proc_id: 1,
        client_id: b"host",
    };
    let (exclusive, unlock) = (lock(1), lock(2));
    script.send(0, 1, exclusive);
    script.send(1, 2, exclusive);
    script.send(1, 3, T::Flush { oldtag: Tag(2) });
    script.send(1, 2, exclusive);
    script.send(0, 1, unlock);
    let ask = T::Getlock {
        fid: ONE,
        kind: 1,
        start: 0,
        length: 0,
        proc_id: 2,
        client_id: b"host",
    };
    script.send(0, 1, ask);
    script.bytes
}

fn old(dialect: Dialect) -> Vec<u8> {
    let mut script = Script::new(dialect);
    let make = |name, perm, extension| T::Create {
        fid: ONE,
        name,
        perm,
        mode: 2,
        extension: Extension(extension),
    };
    script.walk(0, ROOT, ONE, &[]);
    script.send(0, 1, make(b"a", 0o644, b""));
    let data = Data(b"data");
    script.all(&[
        T::Write {
            fid: ONE,
            offset: 0,
            data,
        },
        T::Stat { fid: ONE },
        T::Wstat {
            fid: ONE,
            stat: Stat {
                mode: 0o600,
                length: 2,
                name: b"b",
                ..Stat::UNTOUCHED
            },
        },
        T::Clunk { fid: ONE },
    ]);
    script.walk(0, ROOT, ONE, &[]);
    script.send(0, 1, make(b"c", 0x0200_01ff, b"b"));
    script.walk(0, ROOT, TWO, &[]);
    script.all(&[
        T::Open { fid: TWO, mode: 0 },
        T::Read {
            fid: TWO,
            offset: 0,
            count: 4000,
        },
        T::Remove { fid: ONE },
    ]);
    script.bytes
}
