//! The controller service, with a shared directory of this host and one of a 9P server.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Child, Command, Stdio};

use csi::proto::{
    AccessType, CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, Empty, Mode,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
};
use rustix::process::Pid;
use tonic::{Code, Status};

use crate::daemon::{Daemon, Scratch, barge, capability};

fn create(daemon: &Daemon, name: &str, parameters: &[(&str, &str)]) -> Result<Volume, Status> {
    let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
    let request = CreateVolumeRequest {
        name: name.into(),
        volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter)],
        parameters: parameters.iter().map(owned).collect(),
        volume_content_source: None,
        mutable_parameters: HashMap::new(),
    };
    let response: CreateVolumeResponse = daemon.call("Controller/CreateVolume", request)?;
    Ok(response.volume.expect("a volume"))
}

fn delete(daemon: &Daemon, id: &str) -> Result<Empty, Status> {
    let request = DeleteVolumeRequest {
        volume_id: id.into(),
    };
    daemon.call("Controller/DeleteVolume", request)
}

fn code<T>(result: Result<T, Status>) -> Code {
    result.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[test]
fn a_volume_is_a_directory_beneath_a_shared_one() {
    let scratch = Scratch::new();
    let shared = scratch.dir("shared");
    let daemon = Daemon::start(
        &scratch,
        &["--allow-path", &shared, "--barge", "/bin/false"],
    );
    let source = ("source", shared.as_str());
    let volume = create(&daemon, "pvc-1", &[source, ("mountPermissions", "0770")]).expect("made");
    assert_eq!(
        create(&daemon, "pvc-1", &[source]).expect("made before"),
        volume
    );
    let made = fs::metadata(scratch.path("shared/pvc-1")).expect("there");
    assert_eq!(made.permissions().mode() & 0o7777, 0o770);
    assert_eq!(volume.capacity_bytes, 0);
    assert_eq!(volume.volume_context["source"], shared);
    assert_eq!(volume.volume_context["subDir"], "pvc-1");

    // A tree with a link, which is removed and not followed.
    let outside = scratch.dir("outside");
    fs::write(scratch.path("outside/file"), "kept").expect("written");
    fs::create_dir_all(scratch.path("shared/pvc-1/a/b")).expect("made");
    fs::write(scratch.path("shared/pvc-1/a/b/file"), "lost").expect("written");
    symlink(&outside, scratch.path("shared/pvc-1/a/link")).expect("made");
    let validate = |id: &str, block: bool| {
        let mut capability = capability(Mode::SingleNodeWriter);
        if block {
            capability.access_type = Some(AccessType::Block(Empty {}));
        }
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: id.into(),
            volume_capabilities: vec![capability],
            ..ValidateVolumeCapabilitiesRequest::default()
        };
        let method = "Controller/ValidateVolumeCapabilities";
        let response: Result<ValidateVolumeCapabilitiesResponse, Status> =
            daemon.call(method, request);
        response.map(|response| response.confirmed.is_some())
    };
    assert!(validate(&volume.volume_id, false).expect("validated"));
    assert!(!validate(&volume.volume_id, true).expect("validated"));
    for _ in 0..2 {
        delete(&daemon, &volume.volume_id).expect("removed");
    }
    assert_eq!(fs::read_dir(&shared).expect("listed").count(), 0);
    assert_eq!(
        fs::read(scratch.path("outside/file")).expect("read"),
        b"kept"
    );
    assert_eq!(code(validate(&volume.volume_id, false)), Code::NotFound);

    let parameters = [
        source,
        ("subDir", "${pvc.metadata.namespace}/${pvc.metadata.name}"),
        ("onDelete", "retain"),
        ("csi.storage.k8s.io/pvc/namespace", "team"),
        ("csi.storage.k8s.io/pvc/name", "data"),
    ];
    let volume = create(&daemon, "pvc-2", &parameters).expect("made");
    delete(&daemon, &volume.volume_id).expect("retained");
    assert!(scratch.path("shared/team/data").is_dir());
}

#[test]
fn claims_of_two_namespaces_never_share_a_directory() {
    let scratch = Scratch::new();
    let shared = scratch.dir("shared");
    let daemon = Daemon::start(
        &scratch,
        &["--allow-path", &shared, "--barge", "/bin/false"],
    );
    let claim = |template: &str, namespace: &str, name: &str, volume: &str| {
        let parameters = [
            ("source", shared.as_str()),
            ("subDir", template),
            ("csi.storage.k8s.io/pvc/namespace", namespace),
            ("csi.storage.k8s.io/pvc/name", name),
            ("csi.storage.k8s.io/pv/name", volume),
        ];
        create(&daemon, volume, &parameters)
    };
    for template in [
        "${pvc.metadata.name}",
        "${pvc.metadata.namespace}",
        "${pvc.metadata.namespace}-${pvc.metadata.name}",
        "${pvc.metadata.name}${pvc.metadata.namespace}/x",
        "data",
        "a/b",
    ] {
        let refused = claim(template, "a", "b-c", "pvc-1").expect_err(template);
        assert_eq!(refused.code(), Code::InvalidArgument, "{template}");
        assert!(
            refused.message().contains("${pv.metadata.name}"),
            "{refused}"
        );
    }
    assert_eq!(fs::read_dir(&shared).expect("listed").count(), 0);
    for template in [
        "${pvc.metadata.namespace}/${pvc.metadata.name}",
        "of-${pvc.metadata.name}/${pvc.metadata.namespace}",
        "${pv.metadata.name}",
        "${pvc.metadata.namespace}-${pvc.metadata.name}-${pv.metadata.name}",
    ] {
        let one = claim(template, "a", "b-c", "pvc-1").expect(template);
        let two = claim(template, "a-b", "c", "pvc-2").expect(template);
        let directory = |volume: &csi::proto::Volume| volume.volume_context["subDir"].clone();
        assert_ne!(directory(&one), directory(&two), "{template}");
        for volume in [one, two] {
            delete(&daemon, &volume.volume_id).expect("removed");
        }
    }
}

#[test]
fn a_volume_whose_shared_directory_is_gone_is_deleted() {
    let scratch = Scratch::new();
    let allowed = scratch.dir("allowed");
    let daemon = Daemon::start(
        &scratch,
        &["--allow-path", &allowed, "--barge", "/bin/false"],
    );
    let shared = scratch.dir("allowed/shared");
    let volume = create(&daemon, "pvc-1", &[("source", &shared)]).expect("made");
    fs::remove_dir_all(&shared).expect("removed");
    for _ in 0..2 {
        delete(&daemon, &volume.volume_id).expect("nothing is left");
    }
    // A file in its place is another error.
    fs::write(&shared, "a file").expect("written");
    assert_ne!(code(delete(&daemon, &volume.volume_id)), Code::Ok);
}

#[test]
fn hostile_names_and_identifiers_leave_other_directories_alone() {
    let scratch = Scratch::new();
    let shared = scratch.dir("shared");
    let outside = scratch.dir("outside");
    fs::write(scratch.path("outside/file"), "kept").expect("written");
    symlink(&outside, scratch.path("shared/link")).expect("made");
    let daemon = Daemon::start(
        &scratch,
        &["--allow-path", &shared, "--barge", "/bin/false"],
    );
    let source = ("source", shared.as_str());
    let long = "x".repeat(300);
    for name in [
        "",
        "..",
        ".",
        "../outside",
        "a/b",
        "a#b",
        "a\nb",
        ".hidden",
        &long,
    ] {
        assert_eq!(
            code(create(&daemon, name, &[source])),
            Code::InvalidArgument,
            "{name:?}"
        );
    }
    for (key, value) in [
        ("subDir", "../outside"),
        ("subDir", "/outside"),
        ("subDir", "a/../../outside"),
        ("subDir", "${pvc.metadata.name}"),
        ("subDir", ""),
        ("onDelete", "explode"),
        ("mountPermissions", "99"),
        ("options", "suid,cache_dir=/etc"),
        ("colour", "red"),
    ] {
        let refused = code(create(&daemon, "v", &[source, (key, value)]));
        let expected = match key {
            "options" => Code::PermissionDenied,
            _ => Code::InvalidArgument,
        };
        assert_eq!(refused, expected, "{key}={value}");
    }
    let metadata = [
        source,
        ("subDir", "${pvc.metadata.name}"),
        ("csi.storage.k8s.io/pvc/name", ".."),
    ];
    assert_eq!(code(create(&daemon, "v", &metadata)), Code::InvalidArgument);
    for other in ["/", "/etc", &outside, "s3://bucket/key", "mem:", "relative"] {
        let refused = code(create(&daemon, "v", &[("source", other)]));
        assert!(
            [Code::PermissionDenied, Code::InvalidArgument].contains(&refused),
            "{other}"
        );
    }
    // A link in the shared directory is no volume.
    for parameters in [
        &[source, ("subDir", "link")][..],
        &[source, ("subDir", "link/v")],
    ] {
        assert_ne!(code(create(&daemon, "v", parameters)), Code::Ok);
    }
    for id in [
        format!("{shared}#../outside##"),
        format!("{shared}#link##"),
        format!("{shared}#link/file##"),
        format!("{outside}#file##"),
        "/#etc##".into(),
        "unknown".into(),
        long.clone(),
    ] {
        let _ = delete(&daemon, &id);
        assert!(scratch.path("outside/file").exists(), "{id}");
        assert!(scratch.path("shared/link").is_symlink(), "{id}");
    }
    assert_eq!(fs::read_dir(&shared).expect("listed").count(), 1);
}

/// A server on the loopback interface, which ends when this is dropped.
pub(crate) struct Server(Child);

impl Server {
    /// Serves the directory `shared` over the protocol of an option, with more options. Returns
    /// the server and its URL.
    pub(crate) fn start(protocol: &str, shared: &str, more: &[&str]) -> (Server, String) {
        let variable = protocol.replace("--", "BARGE_").to_uppercase();
        // The command prints the server's URL, and waits for the end of the test.
        let run = format!("echo \"${{{variable}}}\"; read line");
        let mut server = Command::new(barge())
            .args(["serve", protocol, "tcp:127.0.0.1:0", shared, "--run", &run])
            .args(["--squash", "none"])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map(Server)
            .expect("starts");
        let mut lines = BufReader::new(server.0.stdout.take().expect("piped")).lines();
        let url = lines.find_map(|line| line.ok().filter(|line| line.contains("://127.")));
        (server, url.expect("it serves"))
    }

    /// Returns the processes that the server has started: the one that serves, and the command.
    pub(crate) fn children(&self) -> Vec<Pid> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.id())).expect("it runs");
        let children = tasks.flatten().map(|task| {
            let children = fs::read_to_string(task.path().join("children"));
            children.unwrap_or_default()
        });
        let numbers = children.collect::<String>();
        let numbers = numbers
            .split_whitespace()
            .map(|it| it.parse().expect("a number"));
        numbers.filter_map(Pid::from_raw).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_shared_directory_may_be_on_a_server() {
    assert!(barge().is_file(), "cargo build -p barge makes it");
    for protocol in ["--9p", "--nfs"] {
        let scratch = Scratch::new();
        let shared = scratch.dir("shared");
        let (_server, source) = Server::start(protocol, &shared, &[]);
        let daemon = Daemon::start(&scratch, &["--barge", "/bin/false"]);
        let volume = create(&daemon, "pvc-1", &[("source", &source)]).expect("made");
        assert!(scratch.path("shared/pvc-1").is_dir());
        let deep = scratch.path("shared/pvc-1/a/b/c");
        fs::create_dir_all(&deep).expect("made");
        // More than one batch.
        for number in 0..3000 {
            fs::write(deep.join(number.to_string()), "lost").expect("written");
        }
        delete(&daemon, &volume.volume_id).expect(protocol);
        assert_eq!(fs::read_dir(&shared).expect("listed").count(), 0);
        let beneath = format!("{}/beneath", source.trim_end_matches('/'));
        scratch.dir("shared/beneath");
        let volume = create(&daemon, "pvc-2", &[("source", &beneath)]).expect("made");
        fs::remove_dir_all(scratch.path("shared/beneath")).expect("removed");
        delete(&daemon, &volume.volume_id).expect("nothing is left");
    }
}
