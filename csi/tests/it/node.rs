//! The node service with real mounts.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use csi::proto::{
    Empty, HealthError, Mode, NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tonic::{Code, Status};
use vfs_testkit::{ControlGroup, wait_until};

use crate::controller::Server;
use crate::daemon::{Daemon, Scratch, barge, capability, command, may_mount, processes_with};

pub(crate) fn map(entries: &[(&str, &str)]) -> HashMap<String, String> {
    let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
    entries.iter().map(owned).collect()
}

/// A volume and its directories.
pub(crate) struct Volume<'a> {
    pub(crate) daemon: &'a Daemon,
    pub(crate) id: String,
    pub(crate) staging: String,
    pub(crate) context: HashMap<String, String>,
    pub(crate) secrets: HashMap<String, String>,
}

/// Returns whether a mount could not be unmounted since it is in use.
fn is_busy(status: &Status) -> bool {
    let text = std::io::Error::from(Errno::BUSY).to_string();
    status.message().contains(&text)
}

impl<'a> Volume<'a> {
    /// Returns the volume `name` of a test. Volumes of other tests, which run on the same node,
    /// have other IDs.
    pub(crate) fn new(
        daemon: &'a Daemon,
        scratch: &Scratch,
        name: &str,
        context: &[(&str, &str)],
    ) -> Self {
        Volume {
            daemon,
            id: scratch.unique(name),
            staging: scratch.dir(&format!("staging-{name}")),
            context: map(context),
            secrets: HashMap::new(),
        }
    }

    fn stage_request(&self) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.staging.clone(),
            volume_capability: Some(capability(Mode::MultiNodeMultiWriter)),
            secrets: self.secrets.clone(),
            volume_context: self.context.clone(),
        }
    }

    pub(crate) fn stage(&self) -> Result<Empty, Status> {
        self.daemon
            .call("Node/NodeStageVolume", self.stage_request())
    }

    pub(crate) fn unstage(&self) -> Result<Empty, Status> {
        let request = NodeUnstageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.staging.clone(),
        };
        self.daemon.call("Node/NodeUnstageVolume", request)
    }

    fn publish_request(&self, target: &str, readonly: bool) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.staging.clone(),
            target_path: target.into(),
            volume_capability: Some(capability(Mode::MultiNodeMultiWriter)),
            readonly,
            secrets: self.secrets.clone(),
            volume_context: self.context.clone(),
        }
    }

    pub(crate) fn publish(&self, target: &str, readonly: bool) -> Result<Empty, Status> {
        let request = self.publish_request(target, readonly);
        self.daemon.call("Node/NodePublishVolume", request)
    }

    /// Publishes as the kubelet publishes an inline volume.
    pub(crate) fn publish_inline(&self, target: &str) -> Result<Empty, Status> {
        let mut request = self.publish_request(target, false);
        request.staging_target_path.clear();
        let mark = (csi::policy::EPHEMERAL.to_owned(), "true".to_owned());
        request.volume_context.extend([mark]);
        self.daemon.call("Node/NodePublishVolume", request)
    }

    /// Unpublishes the volume, and tries again while it is in use, as kubelets do: a program that
    /// another test starts has this process's descriptors until it is executed.
    pub(crate) fn unpublish(&self, target: &str) -> Result<Empty, Status> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let request = NodeUnpublishVolumeRequest {
                volume_id: self.id.clone(),
                target_path: target.into(),
            };
            match self.daemon.call("Node/NodeUnpublishVolume", request) {
                Err(status) if is_busy(&status) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                done => return done,
            }
        }
    }

    fn stats(&self, path: &str) -> Result<NodeGetVolumeStatsResponse, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: self.id.clone(),
            volume_path: path.into(),
        };
        self.daemon.call("Node/NodeGetVolumeStats", request)
    }

    /// Returns the reasons for which the volume is inaccessible.
    fn problems(&self) -> Result<Vec<String>, Status> {
        let request = NodeGetVolumeHealthRequest {
            volume_id: self.id.clone(),
            ..NodeGetVolumeHealthRequest::default()
        };
        let health: NodeGetVolumeHealthResponse =
            self.daemon.call("Node/NodeGetVolumeHealth", request)?;
        let health = health.volume_health.expect("a health");
        assert_eq!(health.volume_id, self.id);
        let reason = |entry: csi::proto::HealthEntry| {
            assert_eq!(entry.status, HealthError::Inaccessible as i32);
            entry.reason
        };
        Ok(health.health_statuses.into_iter().map(reason).collect())
    }
}

pub(crate) fn code<T>(result: Result<T, Status>) -> Code {
    result.map_or_else(|status| status.code(), |_| Code::Ok)
}

/// Makes a directory `allowed` with a tree and an image of it, and returns its path.
pub(crate) fn make_sources(scratch: &Scratch) -> String {
    let allowed = scratch.dir("allowed");
    fs::create_dir(scratch.path("allowed/tree")).expect("made");
    fs::write(scratch.path("allowed/tree/hello"), "hello").expect("written");
    let mut pack = Command::new(barge());
    pack.arg("pack").arg(scratch.path("allowed/tree"));
    let packed = pack.arg(scratch.path("allowed/image.erofs")).output();
    assert!(packed.expect("runs").status.success());
    allowed
}

/// Starts a daemon that allows these sources.
fn with_sources(scratch: &Scratch, more: &[&str]) -> (Daemon, String) {
    let allowed = make_sources(scratch);
    let args = [&["--allow-path", allowed.as_str()], more].concat();
    (Daemon::start(scratch, &args), allowed)
}

/// Stages a volume of the tree and publishes it on the directory whose path it returns.
fn publish_tree<'a>(daemon: &'a Daemon, scratch: &Scratch) -> (Volume<'a>, String) {
    let source = scratch.text("allowed/tree");
    let volume = Volume::new(daemon, scratch, "v", &[("source", &source)]);
    let target = scratch.text("target");
    volume.stage().expect("staged");
    volume.publish(&target, false).expect("published");
    (volume, target)
}

#[test]
fn a_volume_is_mounted_once_and_published_to_each_workload() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (daemon, allowed) = with_sources(&scratch, &[]);
    for (id, source) in [
        ("tree", format!("{allowed}/tree")),
        ("image", format!("image:{allowed}/image.erofs")),
    ] {
        let volume = Volume::new(&daemon, &scratch, id, &[("source", &source)]);
        let (one, two) = (scratch.text("one"), scratch.text("two"));
        for _ in 0..2 {
            volume.stage().expect("staged");
        }
        assert_eq!(scratch.mounts(), 1);
        for _ in 0..2 {
            volume.publish(&one, false).expect("published");
            volume.publish(&two, true).expect("published");
        }
        assert_eq!(scratch.mounts(), 3);
        for target in [&one, &two] {
            let text = fs::read_to_string(format!("{target}/hello")).expect("read");
            assert_eq!(text, "hello");
        }
        let write = |target: &str| fs::write(format!("{target}/new"), "new");
        assert!(write(&two).is_err());
        assert_eq!(write(&one).is_ok(), id == "tree");
        assert_eq!(
            code(volume.publish(&one, true)),
            if id == "tree" {
                Code::AlreadyExists
            } else {
                Code::Ok
            }
        );
        let usage = volume.stats(&one).expect("published").usage;
        assert_eq!(usage.len(), 2);
        assert!(usage[0].total > 0 && usage[0].used <= usage[0].total);
        assert!(volume.problems().expect("mounted").is_empty());
        for _ in 0..2 {
            volume.unpublish(&one).expect("unpublished");
        }
        assert!(!scratch.path("one").exists());
        assert!(fs::read_to_string(scratch.path("two/hello")).is_ok());
        volume.unpublish(&two).expect("unpublished");
        for _ in 0..2 {
            volume.unstage().expect("unstaged");
        }
        assert_eq!(scratch.mounts(), 0);
        assert!(scratch.path(&format!("staging-{id}")).is_dir());
        assert_eq!(code(volume.problems()), Code::NotFound);
        assert_eq!(code(volume.publish(&one, false)), Code::FailedPrecondition);
        assert!(!scratch.path("one").exists());
    }
    // The tree is the one that was published.
    assert_eq!(
        fs::read(scratch.path("allowed/tree/new")).expect("read"),
        b"new"
    );
    assert_eq!(
        fs::read_dir(scratch.path("state")).expect("listed").count(),
        0
    );
}

/// Returns the attributes of the mount on `target`, as the mount table has them.
fn attributes(target: &str) -> Vec<String> {
    let entry = sys::mounts::at(target.as_ref()).expect("read");
    let options = entry.expect("a mount").options;
    options.split(',').map(str::to_owned).collect()
}

#[test]
fn a_read_only_publish_keeps_the_attributes_of_the_staged_mount() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (daemon, allowed) = with_sources(&scratch, &[]);
    let context = [
        ("source", allowed.as_str()),
        ("options", "noexec,nodiratime"),
    ];
    let volume = Volume::new(&daemon, &scratch, "v", &context);
    volume.stage().expect("staged");
    let target = scratch.text("target");
    volume.publish(&target, true).expect("published");
    let staged = attributes(&volume.staging);
    let published = attributes(&target);
    assert!(staged.contains(&"rw".into()), "{staged:?}");
    for attribute in ["noexec", "nodiratime"] {
        assert!(staged.iter().any(|one| one == attribute), "{staged:?}");
    }
    for attribute in staged.iter().filter(|&one| one != "rw") {
        assert!(published.contains(attribute), "{published:?}");
    }
    for attribute in ["ro", "nosuid", "nodev"] {
        assert!(
            published.iter().any(|one| one == attribute),
            "{published:?}"
        );
    }
    volume.unpublish(&target).expect("unpublished");
    volume.unstage().expect("unstaged");
}

#[test]
fn a_volume_of_a_single_writer_is_published_once() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (daemon, allowed) = with_sources(&scratch, &[]);
    let volume = Volume::new(&daemon, &scratch, "v", &[("source", &allowed)]);
    volume.stage().expect("staged");
    let publish = |target: &str| {
        let mut request = volume.publish_request(target, false);
        request.volume_capability = Some(capability(Mode::SingleNodeSingleWriter));
        code(daemon.call::<_, Empty>("Node/NodePublishVolume", request))
    };
    let (one, two) = (scratch.text("one"), scratch.text("two"));
    assert_eq!([publish(&one), publish(&one)], [Code::Ok, Code::Ok]);
    assert_eq!(publish(&two), Code::FailedPrecondition);
    volume.unpublish(&one).expect("unpublished");
    assert_eq!(publish(&two), Code::Ok);
    volume.unpublish(&two).expect("unpublished");
    volume.unstage().expect("unstaged");
}

#[test]
fn volumes_with_one_handle_are_told_apart() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (daemon, allowed) = with_sources(&scratch, &[]);
    let tree = format!("{allowed}/tree");
    let volume = Volume::new(&daemon, &scratch, "v", &[("source", &tree)]);
    volume.stage().expect("staged");
    let target = scratch.text("target");
    for (context, differs) in [
        (&[("source", allowed.as_str())][..], "source"),
        (&[("source", &tree), ("options", "noexec")], "options"),
        (
            &[("source", allowed.as_str()), ("options", "noexec")],
            "source, options",
        ),
    ] {
        let mut other = Volume::new(&daemon, &scratch, "v", context);
        other.staging.clone_from(&volume.staging);
        for refused in [other.publish(&target, false), other.stage()] {
            let refused = refused.expect_err(differs);
            assert_eq!(refused.code(), Code::AlreadyExists);
            let shown = format!("(other {differs})");
            assert!(refused.message().contains(&shown), "{refused}");
        }
        assert!(!scratch.path("target").exists());
    }
    volume.publish(&target, true).expect("published");
    volume.publish(&target, true).expect("still published");
    let again = volume.publish(&target, false).expect_err("read-only");
    assert_eq!(again.code(), Code::AlreadyExists);
    volume.unpublish(&target).expect("unpublished");
    volume.publish(&target, false).expect("published");
    volume.publish(&target, false).expect("still published");
    let again = volume.publish(&target, true).expect_err("writable");
    assert_eq!(again.code(), Code::AlreadyExists);
    volume.unpublish(&target).expect("unpublished");
    volume.unstage().expect("unstaged");
}

#[test]
fn mounts_outlive_the_daemon() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (daemon, allowed) = with_sources(&scratch, &[]);
    let source = format!("{allowed}/tree");
    let (_, target) = publish_tree(&daemon, &scratch);
    assert!(!daemon.end(Signal::KILL));
    fs::write(format!("{target}/after"), "after").expect("the mount lives");
    // The socket is left behind, and replaced; the volume is still published.
    let daemon = Daemon::start(&scratch, &["--allow-path", &allowed]);
    let (volume, target) = publish_tree(&daemon, &scratch);
    assert_eq!(scratch.mounts(), 2);
    assert_eq!(fs::read(format!("{target}/after")).expect("read"), b"after");
    volume.stats(&target).expect("published");
    let other = Volume::new(&daemon, &scratch, "v", &[("source", &allowed)]);
    assert_eq!(code(other.stage()), Code::AlreadyExists);
    let other = Volume::new(&daemon, &scratch, "w", &[("source", &source)]);
    other.stage().expect("staged");
    assert_eq!(code(other.publish(&target, false)), Code::AlreadyExists);
    assert_eq!(code(other.stats(&target)), Code::NotFound);
    volume.unpublish(&target).expect("unpublished");
    volume.unstage().expect("unstaged");
    other.unstage().expect("unstaged");
    assert_eq!(scratch.mounts(), 0);
    assert!(daemon.end(Signal::TERM), "a stop is clean");
    assert!(!scratch.path("csi.sock").exists());
}

#[test]
fn a_volume_whose_process_has_ended_is_reported_and_replaced() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (daemon, _) = with_sources(&scratch, &[]);
    let (volume, target) = publish_tree(&daemon, &scratch);
    for pid in processes_with(&volume.staging) {
        kill_process(pid, Signal::KILL).expect("it runs");
    }
    wait_until("the mount is dead", || fs::read_dir(&target).is_err());
    assert_eq!(volume.problems().expect("mounted"), ["MountFailed"]);
    assert_eq!(code(volume.stats(&target)), Code::Internal);
    let next = scratch.text("next");
    volume.publish(&next, false).expect("mounted again");
    volume.publish(&target, false).expect("mounted again");
    for target in [&next, &target] {
        assert!(fs::read(format!("{target}/hello")).is_ok(), "{target}");
        volume.unpublish(target).expect("unpublished");
    }
    assert!(volume.problems().expect("mounted").is_empty());
    volume.unstage().expect("unstaged");
    assert_eq!(scratch.mounts(), 0);
}

/// Processes that are stopped until this is dropped.
struct Stopped(Vec<Pid>);

impl Stopped {
    fn new(processes: Vec<Pid>) -> Stopped {
        for &pid in &processes {
            kill_process(pid, Signal::STOP).expect("it runs");
        }
        // A thread that runs may answer a request before it stops.
        wait_until("all threads have stopped", || {
            processes.iter().all(|&pid| has_stopped(pid))
        });
        Stopped(processes)
    }
}

/// Returns whether all threads of a process are stopped, as proc_pid_stat(5) says.
fn has_stopped(pid: Pid) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).expect("it runs");
    let mut stats = tasks.map(|task| fs::read_to_string(task.expect("listed").path().join("stat")));
    stats.all(|stat| {
        // A thread may have ended meanwhile.
        let Ok(stat) = stat else {
            return true;
        };
        let (_, rest) = stat.rsplit_once(") ").expect("a name");
        rest.starts_with('T')
    })
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for &pid in &self.0 {
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

/// Takes ten seconds, the time-out.
#[test]
fn a_volume_that_does_not_answer_can_be_unpublished() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (daemon, allowed) = with_sources(&scratch, &[]);
    let source = format!("{allowed}/tree");
    let (volume, target) = publish_tree(&daemon, &scratch);
    let next = scratch.text("next");
    let stopped = Stopped::new(processes_with(&volume.staging));
    let stats = NodeGetVolumeStatsRequest {
        volume_id: volume.id.clone(),
        volume_path: target.clone(),
    };
    let stats =
        daemon.start_call::<_, NodeGetVolumeStatsResponse>("Node/NodeGetVolumeStats", stats);
    assert_eq!(code(volume.publish(&next, false)), Code::DeadlineExceeded);
    assert_eq!(code(daemon.finish(stats)), Code::DeadlineExceeded);
    // Further calls wait no more.
    assert_eq!(code(volume.stats(&target)), Code::DeadlineExceeded);
    assert_eq!(code(volume.stage()), Code::DeadlineExceeded);
    assert_eq!(volume.problems().expect("mounted"), ["NotResponding"]);
    let other = Volume::new(&daemon, &scratch, "w", &[("source", &source)]);
    other.stage().expect("another volume");
    volume.unpublish(&target).expect("unpublished");
    volume.unstage().expect("unstaged");
    assert_eq!(scratch.mounts(), 1);
    drop(stopped);
    volume.stage().expect("staged again");
    // The processes that go on need a processor first.
    wait_until("it answers", || {
        volume.problems().expect("mounted").is_empty()
    });
    volume.unstage().expect("unstaged");
    other.unstage().expect("unstaged");
}

/// statvfs(2) of such a mount returns `ETIMEDOUT`, and the mount was unmounted as if it were dead.
#[test]
fn a_soft_mount_whose_server_hangs_stays_staged() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let shared = scratch.dir("shared");
    fs::write(scratch.path("shared/hello"), "hello").expect("written");
    let (server, source) = Server::start("--9p", &shared, &[]);
    let daemon = Daemon::start(&scratch, &[]);
    let context = [
        ("source", &*source),
        ("options", "soft,timeo=10,cache=none"),
    ];
    let volume = Volume::new(&daemon, &scratch, "v", &context);
    let (target, next) = (scratch.text("target"), scratch.text("next"));
    volume.stage().expect("staged");
    volume.publish(&target, false).expect("published");
    let mounted = processes_with(&volume.staging);
    let stopped = Stopped::new(server.children());
    wait_until("a call times out", || {
        rustix::fs::statvfs(&*volume.staging).err() == Some(Errno::TIMEDOUT)
    });
    volume.publish(&next, false).expect("it is staged");
    assert_eq!(scratch.mounts(), 3);
    assert_eq!(processes_with(&volume.staging), mounted, "no other mount");
    drop(stopped);
    for target in [&target, &next] {
        wait_until("the server is back", || {
            fs::read(format!("{target}/hello")).is_ok_and(|text| text == b"hello")
        });
        volume.unpublish(target).expect("unpublished");
    }
    volume.unstage().expect("unstaged");
}

#[test]
fn an_inline_volume_takes_permission_for_its_source() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let target = scratch.text("target");
    {
        let (daemon, allowed) = with_sources(&scratch, &[]);
        for source in [allowed.as_str(), "/etc", "mem:", "https://host/image"] {
            let volume = Volume::new(&daemon, &scratch, "v", &[("source", source)]);
            let refused = code(volume.publish_inline(&target));
            assert_eq!(refused, Code::PermissionDenied, "{source}");
        }
        assert!(daemon.end(Signal::TERM));
    }
    let allowed = scratch.text("allowed");
    let image = format!("{allowed}/image.erofs");
    let daemon = Daemon::start(
        &scratch,
        &[
            "--allow-path",
            &allowed,
            "--allow-inline",
            &image,
            "--allow-inline",
            "mem:",
        ],
    );
    for source in [image.as_str(), "mem:"] {
        let volume = Volume::new(&daemon, &scratch, "v", &[("source", source)]);
        for _ in 0..2 {
            volume.publish_inline(&target).expect("published");
        }
        assert_eq!(scratch.mounts(), 1);
        assert_eq!(scratch.path("target/hello").exists(), source != "mem:");
        volume.unpublish(&target).expect("unpublished");
        assert!(!scratch.path("target").exists());
    }
    for hostile in [
        &[("source", allowed.as_str())][..],
        &[("source", "/etc")],
        &[("source", "dir:/etc")],
        &[("source", &image), ("options", "suid")],
        &[("source", &image), ("options", "cache_dir=/etc")],
        &[("source", "mem:"), ("options", "cache_size=1T")],
        &[("source", "mem:"), ("subDir", "../../etc")],
        &[("source", "--overlay=/etc")],
        &[("source", "mem:"), ("verifyKey", "/etc/shadow")],
        &[("source", "mem:"), ("path", "/etc")],
        &[("source", "image:mem:?device=/dev/sda")],
        &[],
    ] {
        let volume = Volume::new(&daemon, &scratch, "v", hostile);
        let refused = code(volume.publish_inline(&target));
        let expected = [Code::PermissionDenied, Code::InvalidArgument];
        assert!(expected.contains(&refused), "{hostile:?}: {refused:?}");
        assert!(!scratch.path("target").exists(), "{hostile:?}");
    }
    assert_eq!(scratch.mounts(), 0);
}

#[test]
fn hostile_requests_are_refused() {
    let scratch = Scratch::new();
    let allowed = scratch.dir("allowed");
    std::os::unix::fs::symlink("/etc", scratch.path("allowed/link")).expect("made");
    let daemon = Daemon::start(
        &scratch,
        &["--allow-path", &allowed, "--barge", "/bin/false"],
    );
    let good = [("source", allowed.as_str())];
    let long = "x".repeat(5000);
    for id in ["", "a\nb", &long] {
        let mut volume = Volume::new(&daemon, &scratch, "v", &good);
        volume.id = id.to_owned();
        assert_eq!(code(volume.stage()), Code::InvalidArgument, "{id:?}");
    }
    for path in ["", "relative", "/", "/a/../etc", "/..", &long] {
        let mut volume = Volume::new(&daemon, &scratch, "v", &good);
        assert_eq!(
            code(volume.unpublish(path)),
            Code::InvalidArgument,
            "{path:?}"
        );
        volume.staging = path.into();
        assert_eq!(code(volume.stage()), Code::InvalidArgument, "{path:?}");
        assert_eq!(code(volume.unstage()), Code::InvalidArgument, "{path:?}");
    }
    for (source, expected) in [
        (format!("{allowed}/link"), Code::PermissionDenied),
        (format!("{allowed}/link/passwd"), Code::PermissionDenied),
        (format!("{allowed}/missing"), Code::NotFound),
        (format!("{allowed}/../"), Code::PermissionDenied),
        ("nfs+unix:/run/socket".into(), Code::InvalidArgument),
    ] {
        let volume = Volume::new(&daemon, &scratch, "v", &[("source", &source)]);
        assert_eq!(code(volume.stage()), expected, "{source}");
    }
    // A directory with files is no volume, so it stays.
    let volume = Volume::new(&daemon, &scratch, "v", &good);
    assert_eq!(code(volume.unpublish(&allowed)), Code::Internal);
    assert!(scratch.path("allowed/link").is_symlink());
    let mut block = volume.stage_request();
    block.volume_capability.as_mut().expect("one").access_type =
        Some(csi::proto::AccessType::Block(Empty {}));
    let refused: Result<Empty, _> = daemon.call("Node/NodeStageVolume", block);
    assert_eq!(code(refused), Code::InvalidArgument);
    let unknown: Result<Empty, _> = daemon.call("Node/NodeExpandVolume", Empty {});
    assert_eq!(code(unknown), Code::Unimplemented);
    // An error of the program is one line.
    let remote = Volume::new(&daemon, &scratch, "v", &[("source", "nfs://server/export")]);
    let failed = remote.stage().expect_err("it fails");
    assert_eq!(failed.code(), Code::Internal);
    assert!(
        failed.message().starts_with("barge mount: exit status"),
        "{failed}"
    );
}

#[test]
fn a_second_operation_in_flight_is_aborted() {
    let scratch = Scratch::new();
    let fifo = scratch.text("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("runs");
    assert!(made.success());
    let started = scratch.path("started");
    let text = format!(
        "#!/bin/sh\n>{}\nread line <{fifo}\necho \"$line\" >&2\nexit 1\n",
        started.display()
    );
    let program = scratch.script("barge", &text);
    let daemon = Daemon::start(&scratch, &["--barge", &program]);
    let source = [("source", "nfs://server/export")];
    let volume = Volume::new(&daemon, &scratch, "v", &source);
    let first = daemon.start_call::<_, Empty>("Node/NodeStageVolume", volume.stage_request());
    wait_until("the program runs", || started.exists());
    assert_eq!(code(volume.stage()), Code::Aborted);
    assert_eq!(code(volume.unstage()), Code::Aborted);
    assert_eq!(
        code(volume.publish(&scratch.text("t"), false)),
        Code::Aborted
    );
    let other = Volume::new(&daemon, &scratch, "other", &source);
    other.unstage().expect("another volume");
    // A call that the client gives up goes on.
    first.abort();
    assert!(daemon.is_cancelled(first));
    assert_eq!(code(volume.stage()), Code::Aborted);
    fs::write(&fifo, "ended\n").expect("written");
    wait_until("it ends", || code(volume.unstage()) == Code::Ok);
}

#[test]
fn a_restart_removes_what_a_killed_daemon_left() {
    if !may_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (allowed, started) = (make_sources(&scratch), scratch.path("started"));
    let fifo = scratch.text("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("runs");
    assert!(made.success());
    let text = format!("#!/bin/sh\n>{}\nread line <{fifo}\n", started.display());
    let program = scratch.script("barge", &text);
    let args = ["--barge", program.as_str(), "--allow-path", &allowed];
    let key = ("verifyKey", "-----BEGIN PUBLIC KEY-----");
    for source in ["tree", "image.erofs"] {
        let daemon = Daemon::start(&scratch, &args);
        let source = format!("{allowed}/{source}");
        let volume = Volume::new(&daemon, &scratch, "v", &[("source", &source), key]);
        let call = daemon.start_call::<_, Empty>("Node/NodeStageVolume", volume.stage_request());
        wait_until("the program runs", || started.exists());
        assert_eq!(
            scratch.mounts(),
            1,
            "the source is mounted in the state directory"
        );
        call.abort();
        daemon.end(Signal::KILL);
        fs::write(&fifo, "ended\n").expect("written");
        assert_eq!(scratch.mounts(), 1);
        drop(Daemon::start(&scratch, &args));
        assert_eq!(scratch.mounts(), 0);
        let left = fs::read_dir(scratch.path("state")).expect("listed").count();
        assert_eq!(left, 0);
        fs::remove_file(&started).expect("removed");
    }
    assert!(scratch.path("allowed/tree/hello").exists());
}

#[test]
fn an_image_must_be_signed_with_the_key_of_its_volume() {
    if !may_mount() {
        return;
    }
    let openssl = |args: &[&str]| Command::new("openssl").args(args).output();
    if openssl(&["version"]).is_err() {
        eprintln!("skipped: no openssl");
        return;
    }
    let scratch = Scratch::new();
    let allowed = make_sources(&scratch);
    let mut keys = Vec::new();
    for name in ["one.pem", "two.pem"] {
        let secret = scratch.text(name);
        let made = openssl(&["genpkey", "-algorithm", "ed25519", "-out", &secret]);
        assert!(made.expect("runs").status.success());
        let public = openssl(&["pkey", "-in", &secret, "-pubout"]).expect("runs");
        keys.push(String::from_utf8(public.stdout).expect("text"));
    }
    let mut pack = Command::new(barge());
    pack.arg("pack").arg(scratch.path("allowed/tree"));
    pack.arg(scratch.path("allowed/signed.erofs"));
    let packed = pack.arg("--sign").arg(scratch.path("one.pem")).output();
    assert!(packed.expect("runs").status.success());
    let daemon = Daemon::start(&scratch, &["--allow-path", &allowed]);
    for (image, key, good) in [
        ("signed.erofs", &keys[0], true),
        ("signed.erofs", &keys[1], false),
        ("image.erofs", &keys[0], false),
    ] {
        let source = format!("{allowed}/{image}");
        let context = [("source", source.as_str()), ("verifyKey", key)];
        let volume = Volume::new(&daemon, &scratch, "v", &context);
        let staged = volume.stage();
        assert_eq!(staged.is_ok(), good, "{image}: {staged:?}");
        assert_eq!(scratch.mounts(), usize::from(good));
        volume.unstage().expect("unstaged");
    }
    let left = fs::read_dir(scratch.path("state")).expect("listed").count();
    assert_eq!(left, 0);
}

#[test]
fn secrets_are_environment_only() {
    let scratch = Scratch::new();
    let seen = scratch.text("seen");
    let text = format!(
        "#!/bin/sh\nprintf '%s\\n' \"$*\" >{seen}\nenv >>{seen}\necho \"key hush-1 is bad\" >&2\nexit 1\n"
    );
    let program = scratch.script("barge", &text);
    let daemon = Daemon::start(&scratch, &["--barge", &program, "-vv"]);
    let mut volume = Volume::new(&daemon, &scratch, "v", &[("source", "s3://bucket/image")]);
    volume.secrets = map(&[
        ("AWS_ACCESS_KEY_ID", "id-1"),
        ("AWS_SECRET_ACCESS_KEY", "hush-1"),
    ]);
    let failed = volume.stage().expect_err("it fails");
    assert_eq!(failed.message(), "key *** is bad");
    let seen = fs::read_to_string(&seen).expect("it ran");
    let (arguments, environment) = seen.split_once('\n').expect("lines");
    assert!(arguments.ends_with(&format!("-- s3://bucket/image {}", volume.staging)));
    assert!(!arguments.contains("hush") && !arguments.contains("id-1"));
    let mut names: Vec<_> = environment
        .lines()
        .filter_map(|line| line.split('=').next())
        .filter(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name))
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "PATH"]
    );
    assert!(environment.contains("AWS_SECRET_ACCESS_KEY=hush-1\n"));
    volume.secrets = map(&[("LD_PRELOAD", "hush-2")]);
    let refused = volume.stage().expect_err("refused");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(!refused.message().contains("hush"));
    assert!(!daemon.log().contains("hush"), "{}", daemon.log());
}

#[test]
fn the_socket_is_private_and_has_one_daemon() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, &["--barge", "/bin/false"]);
    let mode = |name: &str| {
        let metadata = fs::metadata(scratch.path(name)).expect("there");
        metadata.permissions().mode() & 0o777
    };
    assert_eq!((mode("csi.sock"), mode("state")), (0o600, 0o700));
    let other = scratch.text("other");
    for (more, message) in [
        (&[][..], "another process uses this directory"),
        (
            &["--state-dir", &other],
            "another process serves this socket",
        ),
    ] {
        let args = [&["--barge", "/bin/false"], more].concat();
        let second = command(&scratch, &args).output().expect("runs");
        assert_eq!(second.status.code(), Some(1));
        let text = String::from_utf8_lossy(&second.stderr);
        assert!(text.contains(message), "{text}");
    }
    let info: csi::proto::GetPluginInfoResponse = daemon
        .call("Identity/GetPluginInfo", Empty {})
        .expect("answered");
    assert_eq!(info.name, "barge.csi");
    let node: csi::proto::NodeGetInfoResponse =
        daemon.call("Node/NodeGetInfo", Empty {}).expect("answered");
    assert_eq!(node.node_id, "node-1");
}

#[test]
fn a_state_directory_that_others_can_write_to_is_refused() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("state")).expect("made");
    let mode = fs::Permissions::from_mode(0o1777);
    fs::set_permissions(scratch.path("state"), mode).expect("changed");
    let refused = command(&scratch, &["--barge", "/bin/false"]).output();
    let refused = refused.expect("runs");
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("with mode 1777"), "{text}");
}

/// Makes a control group of version 2, or returns `None` if this process cannot.
fn control_group() -> Option<ControlGroup> {
    let table = sys::mounts::read().expect("read");
    let hierarchy = table.into_iter().find(|entry| entry.kind == "cgroup2")?;
    ControlGroup::new(&hierarchy.target)
}

/// Returns the processes of a control group.
fn members(group: &ControlGroup) -> Vec<Pid> {
    let text = fs::read_to_string(group.path().join("cgroup.procs")).expect("read");
    let pids = text
        .lines()
        .filter_map(|line| Pid::from_raw(line.parse().ok()?));
    pids.collect()
}

/// A container runtime ends a container by killing its control group.
#[test]
fn mounts_outlive_the_control_group_of_the_daemon() {
    if !may_mount() {
        return;
    }
    let (Some(container), Some(group)) = (control_group(), control_group()) else {
        eprintln!("skipped: no writable hierarchy of control groups (version 2)");
        return;
    };
    let scratch = Scratch::new();
    let path = group.path().display().to_string();
    let (daemon, allowed) = with_sources(&scratch, &["--cgroup", &path]);
    let pid = daemon.id().to_string();
    fs::write(container.path().join("cgroup.procs"), pid).expect("moved");
    let source = format!("{allowed}/tree");
    let volume = Volume::new(&daemon, &scratch, "v", &[("source", &source)]);
    volume.stage().expect("staged");
    let mounts = processes_with(&volume.staging);
    let in_group = members(&group);
    assert!(mounts.len() >= 2 && mounts.iter().all(|pid| in_group.contains(pid)));
    fs::write(container.path().join("cgroup.kill"), "1").expect("killed");
    wait_until("the container ends", || members(&container).is_empty());
    let staging = scratch.path("staging-v");
    assert_eq!(fs::read(staging.join("hello")).expect("read"), b"hello");
    drop(daemon);

    let daemon = Daemon::start(&scratch, &["--cgroup", &path, "--allow-path", &allowed]);
    let volume = Volume::new(&daemon, &scratch, "v", &[("source", &source)]);
    volume.stage().expect("still staged");
    volume.unstage().expect("unstaged");
    wait_until("the processes end", || members(&group).is_empty());
}
