//! Each fuzz target with its seeds, and with inputs that differ from them: bytes changed, removed,
//! repeated and moved, as a fuzzer without coverage would. The inputs are the same in every run.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use fastrand::Rng;

/// Inputs of each target that are not seeds.
const CHANGED: u64 = 500;

/// Maximum length in bytes of an input, as for `smoke`.
const MAX_LEN: usize = 4096;

/// Defines a test for each target.
macro_rules! targets {
    ($($name:ident: $module:ident::$target:ident,)*) => {
        $(
            #[test]
            fn $name() {
                run(stringify!($name), barge_fuzz::$module::$target);
            }
        )*

        #[test]
        fn every_target_has_a_test() {
            let mut tested = vec![$(stringify!($name)),*];
            tested.sort_unstable();
            assert_eq!(file_stems("fuzz_targets"), tested);
        }
    };
}

targets! {
    agent_lines: agent::lines,
    block_requests: block::script,
    broker_requests: broker::script,
    change_events: changes::events,
    config_file: config::file,
    control_requests: control::line,
    disk_cache: disk_cache::directory,
    erofs_image: image::run,
    fuse_session: fuse::script,
    fuse_state: fuse_state::load,
    fuse_takeover: fuse::takeover,
    gss_records: gss::script,
    nfs_client: nfs_client::script,
    nfs_session: nfs::script,
    oci_layout: oci::layout,
    overlay_directory: overlay::directory,
    p9_client: client::script,
    p9_decode: decode::stream,
    p9_recovery: recovery::script,
    p9_session: session::script,
    p9_state: p9_state::load,
    registry_text: registry::text,
    rofs_image: rofs::image,
    sidecar_image: sidecar::image,
    snapshotter_requests: snapshotter::script,
    state_files: state::file,
    store_environment: stores::environment,
    suspended_device: suspended::resume,
    tar_archive: tar::archive,
    tls_records: tls::script,
    vhost_user_messages: vhost_user::script,
    virtqueue_rings: rings::script,
}

/// Runs a target with its seeds, and with changed ones.
fn run<R>(name: &str, target: impl Fn(&[u8]) -> R) {
    let seeds = read_all(&format!("seeds/{name}"));
    let check = |input: &[u8], what: &str| {
        let result = panic::catch_unwind(AssertUnwindSafe(|| {
            target(input);
        }));
        if let Err(panic) = result {
            eprintln!("{name} fails with {what}: {}", escaped(input));
            panic::resume_unwind(panic);
        }
    };
    for (file, seed) in &seeds {
        check(seed, file);
    }
    check(&[], "no bytes");
    let mut random = Rng::with_seed(1);
    for number in 0..CHANGED {
        let (file, seed) = &seeds[random.usize(..seeds.len())];
        let mut input = seed[..seed.len().min(MAX_LEN)].to_vec();
        for _ in 0..=random.usize(..4) {
            change(&mut input, &mut random);
        }
        input.truncate(MAX_LEN);
        check(&input, &format!("change {number} of {file}"));
    }
}

/// Changes a part of the input.
fn change(input: &mut Vec<u8>, random: &mut Rng) {
    /// Values around which lengths and offsets are often wrong.
    const BOUNDARIES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];
    if input.is_empty() {
        return input.push(random.u8(..));
    }
    let start = random.usize(..input.len());
    let end = (start + 1 + random.usize(..16)).min(input.len());
    match random.usize(..6) {
        0 => input[start] ^= 1 << random.usize(..8),
        1 => input[start..end].fill(BOUNDARIES[random.usize(..BOUNDARIES.len())]),
        2 => input[start..end].fill_with(|| random.u8(..)),
        3 => drop(input.drain(start..end)),
        4 => {
            let copy = input[start..end].to_vec();
            let at = random.usize(..input.len());
            input.splice(at..at, copy);
        }
        _ => input.truncate(end),
    }
}

/// Returns the files of a directory of this crate with their contents, by name.
fn read_all(dir: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(dir);
    let mut files: Vec<_> = fs::read_dir(&dir)
        .expect("a directory")
        .map(|entry| entry.expect("an entry"))
        .map(|entry| {
            let name = entry.file_name().into_string().expect("UTF-8");
            (name, fs::read(entry.path()).expect("a file"))
        })
        .collect();
    files.sort();
    files
}

/// Returns the names of a directory's files without their extensions, sorted.
fn file_stems(dir: &str) -> Vec<String> {
    let stem = |name: String| name.split('.').next().unwrap_or_default().to_owned();
    read_all(dir)
        .into_iter()
        .map(|(name, _)| stem(name))
        .collect()
}

/// Formats an input as the contents of a byte string literal.
fn escaped(input: &[u8]) -> String {
    input.escape_ascii().to_string()
}
