//! The controller service: volumes that are directories beneath a shared directory.
//!
//! The shared directory is opened in this process, without a mount, so the controller needs no
//! privileges for servers of 9P and NFS. Directories are entered by node, not by path, and no
//! symbolic link is followed: workloads may change the tree meanwhile.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sources::Tree;
use tonic::Status;
use vfs::{Cx, DirEntry, Errno, Kind, Mode, Name, NewNode, Node, OpenFlags, ReaddirMode, SetAttr};

use crate::capabilities::{Usage, bounded, usages, volume_id};
use crate::in_flight::InFlight;
use crate::paths::sub_dir;
use crate::policy::{Author, Policy, Source};
use crate::proto::{
    Capability, Confirmed, ControllerRpc, CreateVolumeRequest, CreateVolumeResponse,
    DeleteVolumeRequest, Empty, GetCapabilitiesResponse, ServiceCapability,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
};
use crate::volume_id::{OnDelete, VolumeId};

/// The permissions of a volume's directory, unless `mountPermissions` says otherwise.
const DEFAULT_PERMISSIONS: u32 = 0o755;

/// Largest length of a volume's name in bytes, as the specification says.
const MAX_NAME: usize = 128;

/// Largest number of levels of directories that DeleteVolume enters.
const MAX_DEPTH: usize = 1024;

/// Largest number of names of a directory that DeleteVolume holds at once.
const MAX_BATCH: usize = 1024;

/// Time for which one DeleteVolume removes files. The orchestrator repeats the call, so a
/// workload that goes on making files occupies a thread for this long at most.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(300);

/// Parameters that the external provisioner adds (`--extra-create-metadata`), and the variables of
/// `subDir` that stand for them.
const METADATA: &[(&str, &str)] = &[
    ("csi.storage.k8s.io/pvc/name", "${pvc.metadata.name}"),
    (
        "csi.storage.k8s.io/pvc/namespace",
        "${pvc.metadata.namespace}",
    ),
    ("csi.storage.k8s.io/pv/name", "${pv.metadata.name}"),
];

/// The controller service. Its methods block, and several threads may call them.
pub struct Controller {
    /// The policy for sources.
    pub policy: Policy,
    /// The volumes with an operation in flight.
    pub in_flight: InFlight,
}

/// The parameters of a storage class.
#[derive(Debug, PartialEq, Eq)]
struct Parameters {
    source: String,
    sub_dir: String,
    on_delete: OnDelete,
    permissions: u32,
    /// Attributes of the volume that the node service interprets.
    context: HashMap<String, String>,
}

impl Parameters {
    fn parse(name: &str, parameters: &HashMap<String, String>) -> Result<Parameters, Status> {
        bounded("parameters", parameters)?;
        let mut context = HashMap::new();
        let (mut source, mut template, mut on_delete) = (None, None, OnDelete::Delete);
        let mut permissions = DEFAULT_PERMISSIONS;
        for (key, value) in parameters {
            match key.as_str() {
                "source" => source = Some(value.trim_end_matches('/')),
                "subDir" => template = Some(value.as_str()),
                "onDelete" => on_delete = value.parse()?,
                "mountPermissions" => permissions = parse_permissions(value)?,
                "options" => {
                    context.insert(key.clone(), value.clone());
                }
                key if key.starts_with("csi.storage.k8s.io/") => {}
                key => {
                    let text = format!(
                        "unknown parameter '{}': expected source, subDir, options, onDelete or mountPermissions",
                        key.escape_debug()
                    );
                    return Err(Status::invalid_argument(text));
                }
            }
        }
        let source = source
            .filter(|source| !source.is_empty())
            .ok_or_else(|| Status::invalid_argument("parameter 'source' is missing"))?;
        if source.contains('#') {
            let text = "source: expected a path or URL without '#'";
            return Err(Status::invalid_argument(text));
        }
        if let Some(template) = template {
            check_template(template)?;
        }
        let mut path = template.unwrap_or(name).to_owned();
        for (key, variable) in METADATA {
            if path.contains(variable) {
                let value = parameters.get(*key).map(String::as_str);
                // A value is one name: it adds no directory.
                let value = value.filter(|value| !value.contains(['/', '$']));
                let value = value.ok_or_else(|| {
                    Status::invalid_argument(format!("subDir: no value for {variable}"))
                })?;
                path = path.replace(variable, value);
            }
        }
        sub_dir(&path)?;
        context.insert("source".into(), source.into());
        context.insert("subDir".into(), path.clone());
        Ok(Parameters {
            source: source.into(),
            sub_dir: path,
            on_delete,
            permissions,
            context,
        })
    }
}

/// Checks that a template yields a directory of its own for each volume: it has the volume's name,
/// or the claim's namespace and name in directories of their own. With another separator than `/`,
/// `a-b` and `c` would be as `a` and `b-c`.
fn check_template(template: &str) -> Result<(), Status> {
    const NAME: &str = "${pvc.metadata.name}";
    const NAMESPACE: &str = "${pvc.metadata.namespace}";
    let has = |variable: &str, other: &str| {
        let mut parts = template.split('/');
        parts.any(|part| part.matches(variable).count() == 1 && !part.contains(other))
    };
    if template.contains("${pv.metadata.name}") || has(NAME, NAMESPACE) && has(NAMESPACE, NAME) {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "subDir: claims could get the same directory: expected ${{pv.metadata.name}}, or \
         {NAMESPACE} and {NAME} with a slash between them"
    )))
}

fn parse_permissions(text: &str) -> Result<u32, Status> {
    let mode = u32::from_str_radix(text, 8).ok();
    mode.filter(|mode| *mode <= 0o7777).ok_or_else(|| {
        Status::invalid_argument(format!(
            "mountPermissions: expected an octal mode such as 0755, got '{}'",
            text.chars().take(32).collect::<String>().escape_debug()
        ))
    })
}

/// Opens a source.
fn open(text: &str) -> io::Result<Tree> {
    let source: sources::Source = text
        .parse()
        .map_err(|bad| io::Error::new(io::ErrorKind::InvalidInput, bad))?;
    source.open(sources::local_options()).map(Tree::new)
}

/// A shared directory in use.
struct Shared {
    tree: Tree,
    name: String,
}

impl Shared {
    fn open(policy: &Policy, source: &str) -> Result<Shared, Status> {
        let allowed = policy.source(Author::Administrator, source)?;
        let local = allowed.open_local()?;
        let text = match (&allowed, &local) {
            (_, Some(dir)) => format!("dir:/proc/self/fd/{}", dir.as_raw_fd()),
            (Source::Remote(url), None) if url.starts_with("9p:") || url.starts_with("nfs:") => {
                url.clone()
            }
            _ => {
                let text = "source: expected a directory, or a server of 9P or NFS";
                return Err(Status::invalid_argument(text));
            }
        };
        let tree = open(&text).map_err(|error| {
            tracing::debug!("a shared directory cannot be opened: {error}");
            let text = format!("the shared directory cannot be opened: {error}");
            match error.kind() {
                io::ErrorKind::NotFound => Status::not_found(text),
                _ => Status::unavailable(text),
            }
        })?;
        Ok(Shared {
            tree,
            name: source.into(),
        })
    }

    fn failed(&self, path: &str, errno: Errno) -> Status {
        let text = format!("{}/{path}: {errno}", self.name);
        match errno {
            Errno::ENOENT => Status::not_found(text),
            Errno::EACCES | Errno::EPERM | Errno::EROFS => Status::failed_precondition(text),
            Errno::ENOSPC | Errno::EDQUOT => Status::resource_exhausted(text),
            _ => Status::internal(text),
        }
    }

    /// Runs `operation` with the root of the tree.
    fn with<T>(
        &self,
        path: &str,
        operation: impl FnOnce(&Cx<'_>, Arc<dyn Node>) -> vfs::Result<T>,
    ) -> Result<T, Status> {
        let tree = &self.tree;
        let result = tree.with(|cx| operation(cx, tree.fs.root(cx)?));
        result.map_err(|errno| self.failed(path, errno))
    }

    /// Makes a directory with its parents, unless they exist. A new one gets `permissions`.
    fn make(&self, path: &str, permissions: u32) -> Result<(), Status> {
        let names = sub_dir(path)?;
        self.with(path, |cx, mut dir| {
            for (at, name) in names.iter().enumerate() {
                let name = Name::new(name.as_bytes())?;
                let is_last = at + 1 == names.len();
                let mode = if is_last {
                    permissions
                } else {
                    DEFAULT_PERMISSIONS
                };
                let new = NewNode::Directory;
                let entry = match dir.make(cx, name, new, Mode::without_umask(mode & 0o777)) {
                    Ok(entry) if is_last => {
                        let set = SetAttr {
                            mode: Some(mode),
                            ..SetAttr::default()
                        };
                        entry.node.setattr(cx, &set)?;
                        entry
                    }
                    Ok(entry) => entry,
                    Err(Errno::EEXIST) => dir.lookup(cx, name)?,
                    Err(errno) => return Err(errno),
                };
                dir = directory(entry)?;
            }
            Ok(())
        })
    }

    /// Returns whether the directory exists.
    fn has(&self, path: &str) -> Result<bool, Status> {
        let names = sub_dir(path)?;
        let found = self.with(path, |cx, root| find(cx, root, &names).map(drop));
        match found {
            Ok(()) => Ok(true),
            Err(status) if status.code() == tonic::Code::NotFound => Ok(false),
            Err(status) => Err(status),
        }
    }

    /// Removes a directory with its contents. Returns `NOT_FOUND` if it does not exist.
    fn remove(&self, path: &str) -> Result<(), Status> {
        let names = sub_dir(path)?;
        let (last, parents) = names.split_last().expect("sub_dir() returns a name");
        self.with(path, |cx, root| {
            let parent = find(cx, root, parents)?;
            remove_tree(cx, parent, last.as_bytes())
        })
    }
}

/// Returns the node of a directory, or `ENOTDIR`, also for a symbolic link.
fn directory(entry: vfs::Entry) -> vfs::Result<Arc<dyn Node>> {
    match entry.attr.kind {
        Kind::Directory => Ok(entry.node),
        _ => Err(Errno::ENOTDIR),
    }
}

fn find(cx: &Cx<'_>, root: Arc<dyn Node>, names: &[&str]) -> vfs::Result<Arc<dyn Node>> {
    names.iter().try_fold(root, |dir, name| {
        directory(dir.lookup(cx, Name::new(name.as_bytes())?)?)
    })
}

/// A directory that is being removed.
struct Removal {
    parent: Arc<dyn Node>,
    name: Vec<u8>,
    node: Arc<dyn Node>,
    /// Names of entries, [`MAX_BATCH`] at most.
    names: Vec<Vec<u8>>,
}

impl Removal {
    fn start(cx: &Cx<'_>, parent: Arc<dyn Node>, name: Vec<u8>) -> vfs::Result<Removal> {
        let node = directory(parent.lookup(cx, Name::new(&name)?)?)?;
        let names = Vec::new();
        Ok(Removal {
            parent,
            name,
            node,
            names,
        })
    }

    /// Returns the next name, or `None` if the directory is empty. Lists it from its start, as the
    /// entries before are removed.
    fn next(&mut self, cx: &Cx<'_>) -> vfs::Result<Option<Vec<u8>>> {
        if self.names.is_empty() {
            let (names, open) = (&mut self.names, self.node.open(cx, OpenFlags::READ)?);
            open.readdir(cx, 0, ReaddirMode::Names, &mut |entry: DirEntry<'_>| {
                let room = names.len() < MAX_BATCH;
                if room {
                    names.push(entry.name.to_vec());
                }
                room
            })?;
        }
        Ok(self.names.pop())
    }
}

/// Removes the directory `name` of `parent` with its contents. Returns `ELOOP` for a tree that is
/// deeper than [`MAX_DEPTH`], and `ETIMEDOUT` after [`REMOVAL_TIMEOUT`], when a part of it is
/// removed.
fn remove_tree(cx: &Cx<'_>, parent: Arc<dyn Node>, name: &[u8]) -> vfs::Result<()> {
    let deadline = Instant::now() + REMOVAL_TIMEOUT;
    let mut stack = vec![Removal::start(cx, parent, name.to_vec())?];
    while let Some(top) = stack.last_mut() {
        if Instant::now() > deadline {
            return Err(Errno::ETIMEDOUT);
        }
        let Some(entry) = top.next(cx)? else {
            top.parent.unlink(cx, Name::new(&top.name)?, true)?;
            stack.pop();
            continue;
        };
        match top.node.unlink(cx, Name::new(&entry)?, false) {
            Ok(()) | Err(Errno::ENOENT) => {}
            // For a directory, Linux returns EISDIR, POSIX says EPERM, and NFS v4 removes it if it
            // is empty.
            Err(errno @ (Errno::EISDIR | Errno::EPERM | Errno::ENOTEMPTY)) => {
                let next = match Removal::start(cx, top.node.clone(), entry) {
                    Err(Errno::ENOTDIR) => return Err(errno),
                    other => other?,
                };
                if stack.len() >= MAX_DEPTH {
                    return Err(Errno::ELOOP);
                }
                stack.push(next);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

impl Controller {
    /// ControllerGetCapabilities.
    pub fn capabilities(&self) -> GetCapabilitiesResponse {
        let all = [
            ControllerRpc::CreateDeleteVolume,
            ControllerRpc::SingleNodeMultiWriter,
        ];
        let capability = |rpc: ControllerRpc| ServiceCapability {
            rpc: Some(Capability { kind: rpc.into() }),
        };
        GetCapabilitiesResponse {
            capabilities: all.into_iter().map(capability).collect(),
        }
    }

    /// CreateVolume: makes the volume's directory, unless it exists.
    pub fn create(&self, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        let name = request.name.as_str();
        if name.is_empty() || name.len() > MAX_NAME || name.contains(['/', '#']) {
            let text = format!("name: expected 1 to {MAX_NAME} bytes without '/' and '#'");
            return Err(Status::invalid_argument(text));
        }
        usages(&request.volume_capabilities)?;
        if request.volume_content_source.is_some() {
            let text = "copies of snapshots and volumes are not supported";
            return Err(Status::invalid_argument(text));
        }
        if !request.mutable_parameters.is_empty() {
            return Err(Status::invalid_argument(
                "mutable_parameters are not supported",
            ));
        }
        let parameters = Parameters::parse(name, &request.parameters)?;
        let id = VolumeId {
            name: match parameters.sub_dir == name {
                true => String::new(),
                false => name.into(),
            },
            source: parameters.source.clone(),
            sub_dir: parameters.sub_dir.clone(),
            on_delete: parameters.on_delete,
        };
        let text = id.to_string();
        let _operation = self.in_flight.start(volume_id(&text)?)?;
        // The node would refuse it later.
        let (author, usage) = (Author::Administrator, Usage::default());
        self.policy
            .plan(author, &parameters.context, &HashMap::new(), &usage)?;
        let shared = Shared::open(&self.policy, &parameters.source)?;
        shared.make(&parameters.sub_dir, parameters.permissions)?;
        Ok(CreateVolumeResponse {
            volume: Some(Volume {
                // Unknown: directories have no size of their own.
                capacity_bytes: 0,
                volume_id: text,
                volume_context: parameters.context,
            }),
        })
    }

    /// DeleteVolume: removes the volume's directory, unless the volume's `onDelete` is `retain`. An
    /// identifier that this plugin did not make is that of a volume that does not exist.
    pub fn delete(&self, request: DeleteVolumeRequest) -> Result<Empty, Status> {
        let text = volume_id(&request.volume_id)?;
        let Ok(id) = text.parse::<VolumeId>() else {
            return Ok(Empty {});
        };
        let _operation = self.in_flight.start(text)?;
        if id.on_delete == OnDelete::Delete {
            let shared = Shared::open(&self.policy, &id.source);
            match shared.and_then(|shared| shared.remove(&id.sub_dir)) {
                // The directory is gone, or the shared directory.
                Err(status) if status.code() == tonic::Code::NotFound => {}
                removed => removed?,
            }
        }
        Ok(Empty {})
    }

    /// ValidateVolumeCapabilities. Returns `NOT_FOUND` for a volume that does not exist.
    pub fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        let text = volume_id(&request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities are missing"));
        }
        let missing = || Status::not_found("the volume does not exist");
        let id: VolumeId = text.parse().map_err(|_| missing())?;
        let _operation = self.in_flight.start(text)?;
        if !Shared::open(&self.policy, &id.source)?.has(&id.sub_dir)? {
            return Err(missing());
        }
        Ok(match usages(&request.volume_capabilities) {
            Ok(()) => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                }),
                message: String::new(),
            },
            Err(status) => ValidateVolumeCapabilitiesResponse {
                confirmed: None,
                message: status.message().into(),
            },
        })
    }
}
