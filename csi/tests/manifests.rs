//! The Kubernetes manifests: YAML that is consistent in itself and with the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use saphyr::{LoadableYamlNode, Yaml};

/// Returns all documents of the manifests, with their files.
fn documents() -> Vec<(String, Yaml<'static>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/kubernetes");
    let mut all = Vec::new();
    for dir in [root.clone(), root.join("examples")] {
        for entry in fs::read_dir(dir).expect("listed") {
            let path = entry.expect("read").path();
            if path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            let name = path.display().to_string();
            let text = fs::read_to_string(&path).expect("read").leak();
            let parsed = Yaml::load_from_str(text);
            let parsed = parsed.unwrap_or_else(|error| panic!("{name}: {error}"));
            all.extend(parsed.into_iter().map(|document| (name.clone(), document)));
        }
    }
    assert!(all.len() > 10);
    all
}

/// Returns the value at a path of keys separated by dots.
fn at<'a>(yaml: &'a Yaml<'static>, path: &str) -> Option<&'a Yaml<'static>> {
    path.split('.')
        .try_fold(yaml, |yaml, key| yaml.as_mapping_get(key))
}

fn text<'a>(yaml: &'a Yaml<'static>, path: &str) -> Option<&'a str> {
    at(yaml, path)?.as_str()
}

/// Returns the elements of a list, none if it is absent.
fn list<'a>(yaml: &'a Yaml<'static>, path: &str) -> &'a [Yaml<'static>] {
    let list = at(yaml, path).and_then(Yaml::as_sequence);
    list.map_or(&[], |list| list.as_slice())
}

/// Returns the documents of a kind.
fn of_kind(kind: &str) -> Vec<Yaml<'static>> {
    let all = documents().into_iter().map(|(_, document)| document);
    all.filter(|document| text(document, "kind") == Some(kind))
        .collect()
}

fn one(kind: &str) -> Yaml<'static> {
    let mut found = of_kind(kind);
    assert_eq!(found.len(), 1, "{kind}");
    found.remove(0)
}

#[test]
fn each_object_has_a_kind_and_a_name() {
    for (file, document) in documents() {
        for key in ["apiVersion", "kind", "metadata.name"] {
            assert!(text(&document, key).is_some(), "{file}: no {key}");
        }
    }
}

#[test]
fn containers_mount_volumes_that_the_pod_has() {
    let mut checked = 0;
    for (file, document) in documents() {
        let spec = at(&document, "spec.template.spec").or_else(|| at(&document, "spec"));
        let Some(spec) = spec else { continue };
        let volumes: BTreeSet<_> = list(spec, "volumes")
            .iter()
            .filter_map(|volume| text(volume, "name"))
            .collect();
        for container in list(spec, "containers") {
            for mount in list(container, "volumeMounts") {
                let name = text(mount, "name").expect("a name");
                assert!(volumes.contains(name), "{file}: no volume {name}");
                checked += 1;
            }
        }
    }
    assert!(checked > 8);
}

/// Returns the arguments of the container `barge-csi` of a workload.
fn arguments(workload: &Yaml<'static>) -> Vec<String> {
    let container = list(workload, "spec.template.spec.containers")
        .iter()
        .find(|container| text(container, "name") == Some("barge-csi"))
        .expect("a container");
    let arguments = list(container, "args").iter();
    arguments
        .map(|argument| argument.as_str().expect("text").to_owned())
        .collect()
}

#[test]
fn the_program_knows_its_arguments() {
    for kind in ["DaemonSet", "Deployment"] {
        let arguments = arguments(&one(kind));
        assert!(arguments.len() >= 2);
        let mut program = Command::new(env!("CARGO_BIN_EXE_barge-csi"));
        // The version is printed if all arguments before it are valid.
        let output = program
            .args(&arguments)
            .arg("--version")
            .output()
            .expect("runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{kind}: {error}");
    }
}

#[test]
fn all_objects_name_the_same_driver_and_socket() {
    let driver = one("CSIDriver");
    let name = text(&driver, "metadata.name").expect("a name").to_owned();
    let help = Command::new(env!("CARGO_BIN_EXE_barge-csi"))
        .arg("--help")
        .output();
    let help = String::from_utf8(help.expect("runs").stdout).expect("text");
    assert!(help.contains(&format!("[default: {name}]")));
    // An inline volume is recognized by what the kubelet adds.
    assert_eq!(
        at(&driver, "spec.podInfoOnMount").and_then(Yaml::as_bool),
        Some(true)
    );
    assert_eq!(
        text(&one("StorageClass"), "provisioner"),
        Some(name.as_str())
    );
    assert_eq!(
        text(&one("PersistentVolume"), "spec.csi.driver"),
        Some(name.as_str())
    );
    let pods = of_kind("Pod");
    let inline = pods.iter().flat_map(|pod| list(pod, "spec.volumes"));
    let inline: Vec<_> = inline
        .filter_map(|volume| text(volume, "csi.driver"))
        .collect();
    assert_eq!(inline, [name.as_str()]);

    let node = one("DaemonSet");
    let socket = format!("/var/lib/kubelet/plugins/{name}");
    let volumes = list(&node, "spec.template.spec.volumes");
    assert!(
        volumes
            .iter()
            .any(|volume| text(volume, "hostPath.path") == Some(&socket))
    );
    let containers = list(&node, "spec.template.spec.containers");
    let registrar = containers
        .iter()
        .flat_map(|container| list(container, "args"));
    let path = format!("--kubelet-registration-path={socket}/csi.sock");
    assert!(
        registrar
            .filter_map(Yaml::as_str)
            .any(|argument| argument == path)
    );
    assert!(arguments(&node).contains(&"--endpoint=unix:///csi/csi.sock".into()));
}

#[test]
fn mounts_reach_the_host_and_outlive_the_container() {
    let node = one("DaemonSet");
    let host_pid = at(&node, "spec.template.spec.hostPID").and_then(Yaml::as_bool);
    assert_eq!(host_pid, Some(true));
    let containers = list(&node, "spec.template.spec.containers");
    let mounts = containers
        .iter()
        .flat_map(|container| list(container, "volumeMounts"));
    let kubelet: Vec<_> = mounts
        .filter(|mount| text(mount, "mountPath") == Some("/var/lib/kubelet"))
        .map(|mount| text(mount, "mountPropagation"))
        .collect();
    assert_eq!(kubelet, [Some("Bidirectional")]);
    assert!(
        arguments(&node)
            .iter()
            .any(|argument| argument.starts_with("--cgroup="))
    );
    // The defaults are safe: no directory of the host, no inline volume.
    for argument in arguments(&node)
        .iter()
        .chain(&arguments(&one("Deployment")))
    {
        assert!(!argument.starts_with("--allow-"), "{argument}");
    }
}

#[test]
fn accounts_and_roles_exist() {
    let names = |kind: &str| -> BTreeSet<String> {
        let found = of_kind(kind);
        found
            .iter()
            .filter_map(|one| text(one, "metadata.name").map(str::to_owned))
            .collect()
    };
    let accounts = names("ServiceAccount");
    for kind in ["DaemonSet", "Deployment"] {
        let workload = one(kind);
        let account = text(&workload, "spec.template.spec.serviceAccountName");
        assert!(accounts.contains(account.expect("an account")), "{kind}");
    }
    for (kind, role) in [
        ("ClusterRoleBinding", "ClusterRole"),
        ("RoleBinding", "Role"),
    ] {
        let binding = one(kind);
        assert_eq!(text(&binding, "roleRef.kind"), Some(role));
        assert!(names(role).contains(text(&binding, "roleRef.name").expect("a name")));
        for subject in list(&binding, "subjects") {
            assert!(accounts.contains(text(subject, "name").expect("a name")));
        }
    }
}
