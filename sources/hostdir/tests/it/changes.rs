//! Streams of changes: of a watched file system, and of watched directories without privileges.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hostdir::{FileSystemWatch, HostDir, Options, WriteEvents};
use rustix::thread::CapabilitySet;
use vfs::{
    Call, Caller, Change, ChangeKinds, ChangeStream, ChangedBy, Cx, Errno, FileSystem as _, Name,
    NewNode, Support,
};

fn cx() -> Cx<'static> {
    static CALL: Call = Call::detached();
    Cx::new(&Caller::ROOT, &CALL)
}

/// A change in words: its kinds, path and old path.
fn words(change: &Change<'_>) -> String {
    let path = |name: vfs::ChangedName<'_>| {
        let (path, name) = (String::from_utf8_lossy(name.path), name.name);
        let name = String::from_utf8_lossy(name);
        match path.is_empty() || name.is_empty() {
            true => format!("{path}{name}"),
            false => format!("{path}/{name}"),
        }
    };
    let kinds: Vec<_> = change.kinds.iter_names().map(|(name, _)| name).collect();
    let mut words = vec![kinds.join("+")];
    words.extend(change.old_name.map(path));
    words.extend(change.name.map(path));
    words.join(" ")
}

/// Returns the changes up to the creation of the file `end`, in words.
fn changes_until_end(stream: &mut dyn ChangeStream, dir: &Path) -> Vec<String> {
    fs::write(dir.join("end"), "").expect("writes");
    let mut seen = Vec::new();
    let is_end = |words: &String| {
        words.contains("CREATED") && words.ends_with(" end") || words == "OVERFLOW"
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while !seen.iter().any(is_end) {
        assert!(
            Instant::now() < deadline,
            "no end after {} changes",
            seen.len()
        );
        stream
            .next(Duration::from_secs(10), &mut |change| {
                seen.push(words(change))
            })
            .expect("reads");
    }
    fs::remove_file(dir.join("end")).expect("removes");
    seen.retain(|words| !words.ends_with(" end"));
    seen
}

/// Held by each test: changes of one that fills its queue fill those of others on the file system.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs `test` with a stream of a watched file system on a disk and in memory, and with watched
/// directories, as far as this process may watch them.
fn with_streams(test: impl Fn(&Path, &HostDir, &mut dyn ChangeStream)) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (parent, privileged) in [
        ("/dev/shm", true),
        (".", true),
        ("/dev/shm", false),
        (".", false),
    ] {
        let dir = tempfile::tempdir_in(parent).expect("a directory");
        let open = || {
            let export = HostDir::open(dir.path(), Options::default()).expect("exported");
            let support = export.capabilities().changes;
            Ok((support, export.watch(&cx()), export))
        };
        let (support, stream, export) = match privileged {
            true => open(),
            false => sys::caps::run_without(CapabilitySet::SYS_ADMIN, open),
        }
        .expect("capabilities can be dropped");
        if support
            != (if privileged {
                Support::Native
            } else {
                Support::Emulated
            })
        {
            eprintln!("skipped: {parent}: {support:?} without privileges");
            continue;
        }
        let mut stream = match stream {
            Err(errno) => {
                eprintln!("skipped: {parent}: no notification here: {errno}");
                continue;
            }
            Ok(stream) => stream,
        };
        println!("{parent}, privileged: {privileged}");
        test(dir.path(), &export, &mut *stream);
    }
}

#[test]
fn each_kind_of_change_is_reported_with_its_path() {
    with_streams(|dir, export, stream| {
        let mut after = |change: &dyn Fn()| {
            change();
            changes_until_end(stream, dir)
        };
        let path = |name: &str| dir.join(name);
        assert_eq!(
            after(&|| fs::create_dir(path("d")).expect("made")),
            ["CREATED d"]
        );
        let created = after(&|| fs::write(path("d/f"), "one").expect("written"));
        assert!(created.iter().all(|change| change.ends_with(" d/f")));
        assert!(created[0].starts_with("CREATED"), "{created:?}");
        assert!(created.iter().any(|change| change.contains("CONTENTS")));
        let written = after(&|| fs::write(path("d/f"), "two").expect("written"));
        assert_eq!(written, ["CONTENTS d/f"]);
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        let chmod = after(&|| fs::set_permissions(path("d/f"), Clone::clone(&private)).unwrap());
        assert_eq!(chmod, ["ATTRIBUTES d/f"]);
        let rename = |old, new| fs::rename(path(old), path(new)).expect("renamed");
        assert_eq!(after(&|| rename("d/f", "d/g")), ["RENAMED d/f d/g"]);
        assert_eq!(after(&|| rename("d/g", "g")), ["RENAMED d/g g"]);
        let linked = after(&|| fs::hard_link(path("g"), path("d/h")).expect("linked"));
        assert!(linked.contains(&"CREATED d/h".into()), "{linked:?}");
        let removed = after(&|| fs::remove_file(path("g")).expect("removed"));
        assert!(removed.contains(&"DELETED g".into()), "{removed:?}");
        fs::create_dir(path("e")).expect("made");
        fs::create_dir(path("e/sub")).expect("made");
        changes_until_end(stream, dir);
        let mut after = |change: &dyn Fn()| {
            change();
            changes_until_end(stream, dir)
        };
        assert_eq!(after(&|| rename("e", "d/e")), ["RENAMED e d/e"]);
        let inside = after(&|| fs::create_dir(path("d/e/sub/x")).expect("made"));
        assert_eq!(inside, ["CREATED d/e/sub/x"], "the new path");
        let removed = after(&|| fs::remove_dir_all(path("d")).expect("removed"));
        // The place of a directory that is gone and had no event before is unknown, unless all are
        // watched.
        let all = export.capabilities().changes == Support::Emulated;
        let gone = ["d/e/sub/x", "d", "d/h", "d/e/sub", "d/e"];
        for gone in &gone[..if all { 5 } else { 2 }] {
            assert!(
                removed.contains(&format!("DELETED {gone}")),
                "{gone}: {removed:?}"
            );
        }
        fs::create_dir(path("d")).expect("made");
        changes_until_end(stream, dir);
        fs::create_dir(path("d/new")).expect("made");
        assert_eq!(changes_until_end(stream, dir), ["CREATED d/new"]);
    });
}

#[test]
fn a_removed_file_that_is_written_is_not_reported_by_its_last_name() {
    with_streams(|dir, export, stream| {
        let mut file = fs::File::create(dir.join("f")).expect("made");
        changes_until_end(stream, dir);
        fs::remove_file(dir.join("f")).expect("removed");
        let removed = changes_until_end(stream, dir);
        assert!(removed.contains(&"DELETED f".into()), "{removed:?}");
        file.write_all(b"contents").expect("written");
        assert_eq!(changes_until_end(stream, dir), [""; 0]);
        fs::write(dir.join("f"), "new").expect("written");
        let created = changes_until_end(stream, dir);
        assert!(created.iter().any(|change| change.contains("CREATED")));
        fs::write(dir.join("f"), "again").expect("written");
        assert_eq!(changes_until_end(stream, dir), ["CONTENTS f"]);
        // A file with another name is reported by that.
        let mut file = fs::File::create(dir.join("g")).expect("made");
        fs::hard_link(dir.join("g"), dir.join("h")).expect("linked");
        fs::remove_file(dir.join("g")).expect("removed");
        changes_until_end(stream, dir);
        fs::write(dir.join("h"), "contents").expect("written");
        assert_eq!(changes_until_end(stream, dir), ["CONTENTS h"]);
        // One that another file has replaced, where it can be opened by its handle.
        fs::write(dir.join("i"), "contents").expect("written");
        fs::rename(dir.join("i"), dir.join("h")).expect("renamed");
        changes_until_end(stream, dir);
        file.write_all(b"contents").expect("written");
        if export.capabilities().changes == Support::Native {
            assert_eq!(changes_until_end(stream, dir), [""; 0]);
        }
    });
}

#[test]
fn a_change_that_cannot_be_located_is_an_overflow() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    fs::create_dir(dir.path().join("d")).expect("made");
    let options = Options {
        // Those of the root and of its file system.
        descriptors: Some(2),
        ..Options::default()
    };
    let export = HostDir::open(dir.path(), options).expect("exported");
    if export.capabilities().changes != Support::Native {
        return eprintln!("skipped: watching a file system takes privileges");
    }
    let mut stream = match export.watch(&cx()) {
        Err(errno) => return eprintln!("skipped: no notification here: {errno}"),
        Ok(stream) => stream,
    };
    fs::write(dir.path().join("d/f"), "").expect("written");
    let mut overflow = false;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !overflow {
        assert!(Instant::now() < deadline, "no overflow");
        let read = stream.next(Duration::from_secs(10), &mut |change| {
            overflow |= change.kinds.contains(ChangeKinds::OVERFLOW);
        });
        read.expect("reads");
    }
}

#[test]
fn moves_across_the_edge_of_the_tree_create_and_delete() {
    with_streams(|dir, _, stream| {
        let outside = tempfile::tempdir_in(dir.parent().expect("a parent")).expect("a directory");
        fs::create_dir(outside.path().join("d")).expect("made");
        fs::write(outside.path().join("d/f"), "contents").expect("written");
        let (here, there) = (dir.join("d"), outside.path().join("d"));
        fs::rename(&there, &here).expect("moved");
        let seen = changes_until_end(stream, dir);
        assert!(seen.contains(&"CREATED d".into()), "{seen:?}");
        fs::write(dir.join("d/f"), "other").expect("written");
        assert_eq!(changes_until_end(stream, dir), ["CONTENTS d/f"]);
        fs::rename(&here, &there).expect("moved");
        assert_eq!(changes_until_end(stream, dir), ["DELETED d"]);
        fs::write(there.join("f"), "outside").expect("written");
        assert_eq!(changes_until_end(stream, dir), [""; 0]);
    });
}

#[test]
fn the_changes_of_this_process_and_their_objects_are_known() {
    with_streams(|dir, export, stream| {
        let root = export.root(&cx()).expect("a root");
        let name = Name::new(b"made").expect("a name");
        let mode = vfs::Mode::without_umask(0o600);
        let made = root.make(&cx(), name, NewNode::File, mode).expect("made");
        let child = std::process::Command::new("touch")
            .arg(dir.join("other"))
            .status();
        assert!(child.expect("runs").success());
        let mut seen = Vec::new();
        while seen.len() < 2 {
            stream
                .next(Duration::from_secs(10), &mut |change| {
                    if change.kinds.contains(ChangeKinds::CREATED) {
                        let dir = change.name.map(|name| name.dir);
                        assert_eq!(dir, Some(root.id()));
                        seen.push((change.by, change.node));
                    }
                })
                .expect("reads");
        }
        assert_eq!(seen[0], (ChangedBy::ThisProcess, Some(made.node.id())));
        assert!(seen[1].0 == ChangedBy::Others && seen[1].1.is_some());
        assert!(stream.covers(made.attr.device) && !stream.covers(made.attr.device + 1));
        // The node keeps the object, although it has no name.
        fs::remove_file(dir.join("made")).expect("removed");
        let mut last = None;
        while last.is_none() {
            stream
                .next(Duration::from_secs(10), &mut |change| {
                    if change.kinds.contains(ChangeKinds::DELETED) {
                        last = Some((change.node, change.last_link));
                    }
                })
                .expect("reads");
        }
        let (node, last_link) = last.expect("seen");
        assert_eq!(node, Some(made.node.id()));
        let native = export.capabilities().changes == Support::Native;
        assert_eq!(last_link, native, "only with handles");
    });
}

#[test]
fn a_file_in_a_new_directory_is_not_reported_as_made_by_others() {
    with_streams(|dir, export, stream| {
        let root = export.root(&cx()).expect("a root");
        let mode = vfs::Mode::without_umask(0o700);
        let (below, file) = (Name::new(b"d"), Name::new(b"f"));
        let below = root.make(&cx(), below.expect("a name"), NewNode::Directory, mode);
        let below = below.expect("made").node;
        let made = below.make(&cx(), file.expect("a name"), NewNode::File, mode);
        made.expect("made");
        // With marks on directories it is found when the stream is read.
        let mut found = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        while found.is_empty() {
            assert!(Instant::now() < deadline, "no change of the file");
            stream
                .next(Duration::from_secs(10), &mut |change| {
                    if change.kinds.contains(ChangeKinds::CREATED)
                        && change.name.is_some_and(|name| name.name == b"f")
                    {
                        found.push(change.by);
                    }
                })
                .expect("reads");
        }
        assert!(!found.contains(&ChangedBy::Others), "{found:?}");
        assert!(dir.join("d/f").exists());
    });
}

#[test]
fn ten_thousand_files_are_reported_once_each() {
    with_streams(|dir, _, stream| {
        let mut attempts = 0..5;
        let (attempt, seen) = loop {
            let attempt = attempts.next().expect("a try without an overflow");
            let mut seen = Vec::new();
            for number in 0..10_000 {
                let name = format!("{attempt}-{number}");
                fs::write(dir.join(name), "").expect("written");
                if number % 100 == 0 {
                    let read = stream.next(Duration::ZERO, &mut |change| seen.push(words(change)));
                    read.expect("reads");
                }
            }
            seen.extend(changes_until_end(stream, dir));
            // Other programs change files of this file system, too.
            if !seen.iter().any(|change| change == "OVERFLOW") {
                break (attempt, seen);
            }
        };
        let created = seen.iter().filter(|change| change.contains("CREATED"));
        let mut names: Vec<_> = created
            .filter_map(|change| change.split(' ').nth(1))
            .filter(|name| name.starts_with(&format!("{attempt}-")))
            .collect();
        assert_eq!(names.len(), 10_000);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 10_000);
    });
}

#[test]
fn lost_changes_are_reported_and_the_stream_goes_on() {
    let limit = fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events");
    let Some(limit) = limit
        .ok()
        .and_then(|text| text.trim().parse::<usize>().ok())
    else {
        return eprintln!("skipped: no limit of fanotify here");
    };
    if limit > 20_000 {
        return eprintln!("skipped: a queue of {limit} events takes long to fill");
    }
    with_streams(|dir, _, stream| {
        fs::create_dir(dir.join("d")).expect("made");
        changes_until_end(stream, dir);
        for number in 0..limit + 10 {
            fs::write(dir.join("d").join(number.to_string()), "").expect("written");
        }
        fs::create_dir(dir.join("lost")).expect("made");
        let mut overflow = false;
        let deadline = Instant::now() + Duration::from_secs(20);
        while !overflow {
            assert!(Instant::now() < deadline, "no overflow");
            stream
                .next(Duration::from_secs(10), &mut |change| {
                    overflow |= change.kinds.contains(ChangeKinds::OVERFLOW);
                })
                .expect("reads");
        }
        fs::write(dir.join("lost/f"), "").expect("written");
        let seen = changes_until_end(stream, dir);
        assert!(
            seen.iter().any(|change| change.ends_with(" lost/f")),
            "{seen:?}"
        );
    });
}

#[test]
fn a_watch_that_was_begun_with_privileges_serves_one_stream_without() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let watch = match FileSystemWatch::begin(dir.path(), WriteEvents::Each) {
        Err(error) => return eprintln!("skipped: {error}"),
        Ok(watch) => watch,
    };
    sys::caps::run_without(CapabilitySet::SYS_ADMIN, || {
        let options = Options {
            watch: Some(watch.clone()),
            ..Options::default()
        };
        let export = HostDir::open(dir.path(), options).expect("exported");
        assert_eq!(export.capabilities().changes, Support::Native);
        let mut stream = export.watch(&cx()).expect("watched");
        fs::create_dir(dir.path().join("d")).expect("made");
        assert_eq!(changes_until_end(&mut *stream, dir.path()), ["CREATED d"]);
        drop(export);
        fs::create_dir(dir.path().join("e")).expect("made");
        let next = stream.next(Duration::from_secs(10), &mut |_| ());
        assert_eq!(next, Err(Errno::ESTALE), "the source is closed");
        Ok(())
    })
    .expect("capabilities can be dropped");
}

/// Returns the number of groups that this process has open.
fn groups() -> usize {
    let open = fs::read_dir("/proc/self/fd").expect("listed").flatten();
    let targets = open.filter_map(|fd| fs::read_link(fd.path()).ok());
    targets
        .filter(|target| target.to_string_lossy().contains("fanotify"))
        .count()
}

#[test]
fn a_watch_that_was_begun_and_cannot_be_used_ends() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let before = groups();
    let watch = match FileSystemWatch::begin(file.path(), WriteEvents::OnClose) {
        Err(error) => return eprintln!("skipped: {error}"),
        Ok(watch) => watch,
    };
    assert_eq!(groups(), before + 1);
    let options = Options {
        watch: Some(watch.clone()),
        ..Options::default()
    };
    let export = HostDir::open(file.path(), options).expect("exported");
    assert_eq!(export.watch(&cx()).map(drop), Err(Errno::EOPNOTSUPP));
    assert_eq!(groups(), before);
}

#[test]
fn a_file_has_no_changes() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let export: Arc<HostDir> = HostDir::open(file.path(), Options::default()).expect("exported");
    assert_eq!(export.capabilities().changes, Support::None);
    assert_eq!(export.watch(&cx()).map(drop), Err(Errno::EOPNOTSUPP));
}
