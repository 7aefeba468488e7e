//! The node service: volumes are mounted once on a node (staged), and published to each workload
//! with a bind mount. Inline volumes have a mount of their own.

use std::path::Path;

use sys::mounts::{self, MountEntry};
use sys::probes::ProbeError;
use tonic::Status;

use crate::capabilities::{Usage, usage, volume_id};
use crate::in_flight::InFlight;
use crate::mount::{Label, MountState, Mounter, create_target, internal, probe_failed, remove_dir};
use crate::paths::mount_point;
use crate::policy::{Author, EPHEMERAL, MountPlan, Policy};
use crate::proto::{
    Capability, Empty, GetCapabilitiesResponse, HealthEntry, HealthError, NodeGetInfoResponse,
    NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodeRpc, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, ServiceCapability, Unit, VolumeHealth,
    VolumeUsage,
};

/// The node service. Its methods block, and several threads may call them.
pub struct Node {
    /// The name of the node.
    pub id: String,
    /// The policy for sources, options and secrets.
    pub policy: Policy,
    /// Mounts volumes.
    pub mounter: Mounter,
    /// The volumes with an operation in flight.
    pub in_flight: InFlight,
    /// The volumes with a query of usage or health in flight. Queries do not exclude operations: a
    /// volume that does not answer can be unmounted.
    pub queries: InFlight,
}

impl Node {
    /// NodeGetInfo.
    pub fn info(&self) -> NodeGetInfoResponse {
        NodeGetInfoResponse {
            node_id: self.id.clone(),
            max_volumes_per_node: 0,
        }
    }

    /// NodeGetCapabilities.
    pub fn capabilities(&self) -> GetCapabilitiesResponse {
        let all = [
            NodeRpc::StageUnstageVolume,
            NodeRpc::GetVolumeStats,
            NodeRpc::SingleNodeMultiWriter,
            NodeRpc::GetVolumeHealth,
        ];
        let capability = |rpc: NodeRpc| ServiceCapability {
            rpc: Some(Capability { kind: rpc.into() }),
        };
        GetCapabilitiesResponse {
            capabilities: all.into_iter().map(capability).collect(),
        }
    }

    /// NodeStageVolume: mounts a volume on its staging directory.
    pub fn stage(&self, request: NodeStageVolumeRequest) -> Result<Empty, Status> {
        let id = volume_id(&request.volume_id)?;
        let staging = mount_point("staging_target_path", &request.staging_target_path)?;
        let usage = usage(request.volume_capability.as_ref())?;
        let plan = self.policy.plan(
            Author::Administrator,
            &request.volume_context,
            &request.secrets,
            &usage,
        )?;
        let _operation = self.in_flight.start(id)?;
        self.ensure_mounted(id, &plan, &staging)?;
        Ok(Empty {})
    }

    /// NodeUnstageVolume: unmounts a volume from its staging directory, which stays.
    pub fn unstage(&self, request: NodeUnstageVolumeRequest) -> Result<Empty, Status> {
        let id = volume_id(&request.volume_id)?;
        let staging = mount_point("staging_target_path", &request.staging_target_path)?;
        let _operation = self.in_flight.start(id)?;
        self.mounter.unmount_all(&staging)?;
        Ok(Empty {})
    }

    /// NodePublishVolume: mounts a volume for a workload.
    pub fn publish(&self, request: NodePublishVolumeRequest) -> Result<Empty, Status> {
        let id = volume_id(&request.volume_id)?;
        let target = mount_point("target_path", &request.target_path)?;
        let mut usage = usage(request.volume_capability.as_ref())?;
        let inline = request.volume_context.get(EPHEMERAL).map(String::as_str) == Some("true");
        let read_only = request.readonly || usage.read_only;
        let (context, secrets) = (&request.volume_context, &request.secrets);
        if inline {
            usage.read_only = read_only;
            let plan = self.policy.plan(Author::Pod, context, secrets, &usage)?;
            let plan = plan.of_pod(id);
            let _operation = self.in_flight.start(id)?;
            return self.publish_with(&target, |target| self.ensure_mounted(id, &plan, target));
        }
        if request.staging_target_path.is_empty() {
            let text = "staging_target_path is missing, and the volume is not an inline one";
            return Err(Status::failed_precondition(text));
        }
        let staging = mount_point("staging_target_path", &request.staging_target_path)?;
        let _operation = self.in_flight.start(id)?;
        let plans = self.plans(&request, &usage, read_only)?;
        let staged = self.staged(id, &plans, &staging)?;
        if usage.single_writer {
            check_unpublished_elsewhere(id, &[&staging, &target])?;
        }
        self.publish_with(&target, |target| {
            if let MountState::Live(entry) = self.cleared(target)? {
                check_plan(id, &plans, target, &entry)?;
                return check_access(target, read_only, &entry, &staged);
            }
            self.mounter.bind(&staging, target, read_only)
        })
    }

    /// Returns the plans of the mounts that a request to publish a staged volume may use, the one
    /// to make first: a workload that does not write may have a mount that others write to.
    fn plans(
        &self,
        request: &NodePublishVolumeRequest,
        usage: &Usage,
        read_only: bool,
    ) -> Result<Vec<MountPlan>, Status> {
        let plan = |read_only| {
            let usage = Usage {
                read_only,
                ..usage.clone()
            };
            let (context, secrets) = (&request.volume_context, &request.secrets);
            self.policy
                .plan(Author::Administrator, context, secrets, &usage)
        };
        let mut plans = vec![plan(usage.read_only)?];
        if read_only {
            plans.push(plan(!usage.read_only)?);
        }
        Ok(plans)
    }

    /// Returns the mount on a staging directory. The orchestrator does not stage a volume twice, so
    /// a mount whose process has ended is replaced, and one that is gone while the volume is
    /// published elsewhere on the node is made again.
    fn staged(&self, id: &str, plans: &[MountPlan], staging: &Path) -> Result<MountEntry, Status> {
        match self.mounter.state(staging)? {
            MountState::Live(entry) => {
                check_plan(id, plans, staging, &entry)?;
                return Ok(entry);
            }
            MountState::Dead(entry) => check_plan(id, plans, staging, &entry)?,
            MountState::Absent if !is_mounted(id)? || !staging.is_dir() => {
                let text = format!("{}: the volume is not staged", staging.display());
                return Err(Status::failed_precondition(text));
            }
            MountState::Absent => {}
        }
        self.ensure_mounted(id, &plans[0], staging)?;
        let entry = mounts::at(staging).map_err(internal("mount table"))?;
        entry.ok_or_else(|| Status::internal(format!("{}: not mounted", staging.display())))
    }

    /// Creates `target` unless it is mounted already, mounts on it with `mount`, and removes it
    /// again if that fails.
    fn publish_with(
        &self,
        target: &Path,
        mount: impl FnOnce(&Path) -> Result<(), Status>,
    ) -> Result<Empty, Status> {
        let mounted = mounts::at(target).map_err(internal("mount table"))?;
        let created = mounted.is_none() && create_target(target)?;
        let result = mount(target);
        if result.is_err() && created {
            // The error of the mount is the one to report.
            let _ = remove_dir(target);
        }
        result.map(|()| Empty {})
    }

    /// NodeUnpublishVolume: unmounts a volume from a workload's directory and removes that.
    pub fn unpublish(&self, request: NodeUnpublishVolumeRequest) -> Result<Empty, Status> {
        let id = volume_id(&request.volume_id)?;
        let target = mount_point("target_path", &request.target_path)?;
        let _operation = self.in_flight.start(id)?;
        self.mounter.unmount_all(&target)?;
        remove_dir(&target)?;
        Ok(Empty {})
    }

    /// Mounts a volume, unless it is mounted already. A dead mount is replaced.
    fn ensure_mounted(&self, id: &str, plan: &MountPlan, target: &Path) -> Result<(), Status> {
        match self.mounter.state(target)? {
            MountState::Live(entry) => {
                return check_plan(id, std::slice::from_ref(plan), target, &entry);
            }
            MountState::Dead(entry) => {
                tracing::warn!("{}: replacing a dead mount", entry.target.display());
                self.mounter.replace(id, plan, target)?;
            }
            MountState::Absent => {
                let mounted = self.mounter.mount(id, plan, target);
                if mounted.is_err() {
                    // A process that was ended may have mounted already.
                    let _ = self.mounter.unmount_all(target);
                }
                mounted?;
            }
        }
        tracing::info!("mounted on {}", target.display());
        Ok(())
    }

    /// NodeGetVolumeStats: the usage of a volume in bytes and inodes. Returns `NOT_FOUND` if the
    /// volume is not mounted on the path, and `DEADLINE_EXCEEDED` if it does not answer.
    pub fn stats(
        &self,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        let id = volume_id(&request.volume_id)?;
        if request.volume_path.is_empty() {
            return Err(Status::invalid_argument("volume_path is missing"));
        }
        let missing = || Status::not_found("the volume is not mounted on volume_path");
        let path = mount_point("volume_path", &request.volume_path).map_err(|_| missing())?;
        let entry = mounts::at(&path).map_err(internal("mount table"))?;
        entry
            .filter(|entry| entry.source.starts_with(&Label::of_volume(id)))
            .ok_or_else(missing)?;
        let _query = self.queries.start(id)?;
        let stat = self.mounter.statvfs(&path);
        let stat = stat.map_err(|error| probe_failed(&path, error))?;
        let block = stat.f_frsize;
        let usage = |available: u64, free: u64, total: u64, scale: u64, unit: Unit| {
            let number = |count: u64| count.saturating_mul(scale).try_into().unwrap_or(i64::MAX);
            VolumeUsage {
                available: number(available),
                total: number(total),
                used: number(total.saturating_sub(free)),
                unit: unit.into(),
            }
        };
        let bytes = usage(
            stat.f_bavail,
            stat.f_bfree,
            stat.f_blocks,
            block,
            Unit::Bytes,
        );
        let inodes = usage(stat.f_favail, stat.f_ffree, stat.f_files, 1, Unit::Inodes);
        Ok(NodeGetVolumeStatsResponse {
            usage: vec![bytes, inodes],
        })
    }

    /// NodeGetVolumeHealth: an adverse condition for each mount of the volume, or for those on the
    /// request's paths, that does not work. Returns `NOT_FOUND` if there is no mount.
    pub fn health(
        &self,
        request: NodeGetVolumeHealthRequest,
    ) -> Result<NodeGetVolumeHealthResponse, Status> {
        let id = volume_id(&request.volume_id)?;
        let paths = [
            ("volume_publish_path", &request.volume_publish_path),
            ("staging_target_path", &request.staging_target_path),
        ];
        let mut named = Vec::new();
        for (what, path) in paths.into_iter().filter(|(_, path)| !path.is_empty()) {
            named.push(mount_point(what, path)?);
        }
        let label = Label::of_volume(id);
        let mut mounts = mounts::read().map_err(internal("mount table"))?;
        mounts.retain(|entry| {
            entry.source.starts_with(&label) && (named.is_empty() || named.contains(&entry.target))
        });
        if mounts.is_empty() {
            return Err(Status::not_found("the volume is not mounted on this node"));
        }
        let _query = self.queries.start(id)?;
        let broken =
            mounts
                .iter()
                .find_map(|entry| match self.mounter.statvfs(&entry.target).err()? {
                    ProbeError::Failed(errno) => {
                        let text = std::io::Error::from(errno).to_string();
                        Some(Ok(inaccessible("MountFailed", text)))
                    }
                    ProbeError::TimedOut => {
                        let text = "the file system does not answer".into();
                        Some(Ok(inaccessible("NotResponding", text)))
                    }
                    error => Some(Err(probe_failed(&entry.target, error))),
                });
        Ok(NodeGetVolumeHealthResponse {
            volume_health: Some(VolumeHealth {
                volume_id: id.into(),
                health_statuses: broken.transpose()?.into_iter().collect(),
            }),
        })
    }

    /// Returns the state of a workload's directory after its dead mounts are unmounted.
    fn cleared(&self, target: &Path) -> Result<MountState, Status> {
        let found = self.mounter.state(target)?;
        if let MountState::Dead(entry) = &found {
            tracing::warn!("{}: replacing a dead mount", entry.target.display());
            self.mounter.unmount_all(target)?;
            return Ok(MountState::Absent);
        }
        Ok(found)
    }
}

fn inaccessible(reason: &str, message: String) -> HealthEntry {
    HealthEntry {
        status: HealthError::Inaccessible.into(),
        reason: reason.into(),
        message,
    }
}

/// Returns `FAILED_PRECONDITION` if a volume is mounted on a directory that is not in `known`.
fn check_unpublished_elsewhere(id: &str, known: &[&Path]) -> Result<(), Status> {
    let label = Label::of_volume(id);
    let table = mounts::read().map_err(internal("mount table"))?;
    let mut mounts = table
        .iter()
        .filter(|entry| entry.source.starts_with(&label));
    match mounts.find(|entry| !known.contains(&entry.target.as_path())) {
        Some(_) => Err(Status::failed_precondition(
            "the volume has a single writer, and is published to another workload",
        )),
        None => Ok(()),
    }
}

/// Returns whether the volume is mounted anywhere on this node.
fn is_mounted(id: &str) -> Result<bool, Status> {
    let label = Label::of_volume(id);
    let table = mounts::read().map_err(internal("mount table"))?;
    Ok(table.iter().any(|entry| entry.source.starts_with(&label)))
}

/// Returns `ALREADY_EXISTS` if a mount is not the volume's, or not as one of the plans says.
fn check_plan(
    id: &str,
    plans: &[MountPlan],
    target: &Path,
    entry: &MountEntry,
) -> Result<(), Status> {
    let exists = |text: String| {
        let text = format!("{}: {text}", target.display());
        Err(Status::already_exists(text))
    };
    if !entry.source.starts_with(&Label::of_volume(id)) {
        return exists("another volume is mounted".into());
    }
    let labels: Vec<Label> = plans.iter().map(|plan| Label::new(id, plan)).collect();
    if labels.iter().any(|label| label.matches(&entry.source)) {
        return Ok(());
    }
    let differs = labels[0].difference(&entry.source);
    exists(format!(
        "mounted, but not as this request says (other {differs})"
    ))
}

/// Returns `ALREADY_EXISTS` if a volume is published for reading alone and `read_only` does not say
/// so, or the other way round. A file system that nobody can write to is no difference.
fn check_access(
    target: &Path,
    read_only: bool,
    entry: &MountEntry,
    staged: &MountEntry,
) -> Result<(), Status> {
    let is_limited = |entry: &MountEntry| entry.options.split(',').any(|option| option == "ro");
    let text = if read_only && !entry.is_read_only() {
        "published for writing"
    } else if !read_only && is_limited(entry) && !is_limited(staged) {
        "published for reading only"
    } else {
        return Ok(());
    };
    let text = format!("{}: {text}", target.display());
    Err(Status::already_exists(text))
}
