//! Mounts in control groups with little memory.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use rustix::fs::{Advice, fadvise};
use vfs_testkit::ControlGroup;

use crate::interrupts::{KINDS, Tree, is_full};
use crate::mount::{Mounted, may_mount};
use crate::served::{BARGE, stderr_of};

const MIB: usize = 1 << 20;

/// Returns `barge mount` of `source` at a directory in `group`.
fn mount_in(group: &ControlGroup, source: &str, at: &Path) -> Command {
    let mut command = Command::new("sh");
    let script = "echo $$ > \"$1/cgroup.procs\" && shift && exec \"$@\"";
    command.args(["-c", script, "sh"]).arg(group.path());
    command.args([BARGE, "mount", "-f", source]).arg(at);
    command
}

/// Fills `data` with bytes that depend on the number of the writer and of the piece.
fn fill(data: &mut [u8], writer: u64, piece: u64) {
    let mut word = (writer << 32 | piece).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for eight in data.chunks_exact_mut(8) {
        word = word.rotate_left(7).wrapping_add(0x1234_5678_9abc_def1);
        eight.copy_from_slice(&word.to_le_bytes());
    }
}

/// Writes a file of `pieces` MiB, and reads it back from the mount.
fn write_and_read(path: &Path, writer: u64, pieces: u64) {
    let (mut data, mut read) = (vec![0; MIB], vec![0; MIB]);
    let mut file = File::create(path).expect("made");
    for piece in 0..pieces {
        fill(&mut data, writer, piece);
        file.write_all(&data).expect("written");
    }
    file.sync_all().expect("synchronised");
    let mut file = File::open(path).expect("opened");
    fadvise(&file, 0, None, Advice::DontNeed).expect("advised");
    for piece in 0..pieces {
        fill(&mut data, writer, piece);
        file.read_exact(&mut read).expect("read");
        assert!(data == read, "piece {piece} differs");
    }
}

#[test]
fn a_mount_in_a_small_control_group_writes_and_reads_much() {
    if !may_mount() {
        return;
    }
    let (limits, pieces): (&[usize], u64) = if is_full() {
        (&[48, 64, 96, 128], 1024)
    } else {
        (&[48], 80)
    };
    for kind in KINDS {
        for &limit in limits {
            let Some(group) = ControlGroup::with_memory(limit * MIB) else {
                return eprintln!("skipped: there are no control groups");
            };
            let tree = Tree::with(kind, |source, at| {
                Mounted::run(mount_in(&group, source, at))
            });
            write_and_read(&tree.at().join("one"), 99, pieces);
            // Several programs have several requests in flight.
            for writers in [16, 32] {
                std::thread::scope(|scope| {
                    for writer in 0..writers {
                        let path = tree.at().join(writer.to_string());
                        let pieces = pieces.div_ceil(writers).max(4);
                        scope.spawn(move || write_and_read(&path, writer, pieces));
                    }
                });
                assert!(
                    tree.mounted.is_running(),
                    "{kind} in {limit} MiB, {writers} writers"
                );
            }
            drop(tree);
        }
    }
}

#[test]
fn a_mount_in_a_control_group_that_is_too_small_for_any_says_so() {
    let Some(group) = ControlGroup::with_memory(24 * MIB).filter(|_| may_mount()) else {
        return eprintln!("skipped: there are no control groups");
    };
    let dir = tempfile::tempdir().expect("a directory");
    let output = mount_in(&group, "mem:", dir.path()).output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    let text = stderr_of(&output);
    let expected =
        "barge: the control group's memory limit is 24 MiB, and a mount takes 32 MiB at least\n";
    assert_eq!(text, expected);
}
