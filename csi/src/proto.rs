//! Messages of the Container Storage Interface 1.13 (csi.proto), those that this plugin uses.
//!
//! Field numbers are the specification's. Messages and fields that the plugin neither reads nor
//! sends are absent: decoding skips them. Debug output of a request may contain secrets and is
//! never logged.

use std::collections::HashMap;

use prost::{Enumeration, Message, Oneof};

/// Requests without a field: of the plugin's information, its capabilities and its health.
#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

/// Response of GetPluginInfo.
#[derive(Clone, PartialEq, Message)]
pub struct GetPluginInfoResponse {
    /// Name of the plugin, in domain-name notation.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Version of the plugin.
    #[prost(string, tag = "2")]
    pub vendor_version: String,
}

/// Response of GetPluginCapabilities.
#[derive(Clone, PartialEq, Message)]
pub struct GetPluginCapabilitiesResponse {
    /// Services beyond those that every plugin has.
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<PluginCapability>,
}

/// A capability of the plugin.
#[derive(Clone, PartialEq, Message)]
pub struct PluginCapability {
    /// An optional service.
    #[prost(message, optional, tag = "1")]
    pub service: Option<Capability>,
}

/// A capability of the plugin or of a service: one number of an enumeration.
#[derive(Clone, PartialEq, Message)]
pub struct Capability {
    /// A value of [`PluginService`], [`ControllerRpc`] or [`NodeRpc`].
    #[prost(int32, tag = "1")]
    pub kind: i32,
}

/// PluginCapability.Service.Type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum PluginService {
    /// No service.
    Unknown = 0,
    /// The plugin has the controller service.
    ControllerService = 1,
}

/// ControllerServiceCapability.RPC.Type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum ControllerRpc {
    /// No capability.
    Unknown = 0,
    /// CreateVolume and DeleteVolume.
    CreateDeleteVolume = 1,
    /// The access modes of one node with one or many writers.
    SingleNodeMultiWriter = 13,
}

/// NodeServiceCapability.RPC.Type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum NodeRpc {
    /// No capability.
    Unknown = 0,
    /// NodeStageVolume and NodeUnstageVolume.
    StageUnstageVolume = 1,
    /// NodeGetVolumeStats.
    GetVolumeStats = 2,
    /// The access modes of one node with one or many writers.
    SingleNodeMultiWriter = 5,
    /// NodeGetVolumeHealth, an alpha feature of the specification.
    GetVolumeHealth = 7,
}

/// Response of Probe.
#[derive(Clone, PartialEq, Message)]
pub struct ProbeResponse {
    /// Whether the plugin is ready.
    #[prost(message, optional, tag = "1")]
    pub ready: Option<BoolValue>,
}

/// google.protobuf.BoolValue.
#[derive(Clone, PartialEq, Message)]
pub struct BoolValue {
    /// The value.
    #[prost(bool, tag = "1")]
    pub value: bool,
}

/// Response of ControllerGetCapabilities and of NodeGetCapabilities.
#[derive(Clone, PartialEq, Message)]
pub struct GetCapabilitiesResponse {
    /// The optional procedures of the service.
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<ServiceCapability>,
}

/// ControllerServiceCapability and NodeServiceCapability.
#[derive(Clone, PartialEq, Message)]
pub struct ServiceCapability {
    /// An optional procedure.
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<Capability>,
}

/// The way that a volume is used.
#[derive(Clone, PartialEq, Message)]
pub struct VolumeCapability {
    /// As a block device or as a file system.
    #[prost(oneof = "AccessType", tags = "1, 2")]
    pub access_type: Option<AccessType>,
    /// The writers and readers.
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

/// VolumeCapability.access_type.
#[derive(Clone, PartialEq, Oneof)]
pub enum AccessType {
    /// A block device.
    #[prost(message, tag = "1")]
    Block(Empty),
    /// A mounted file system.
    #[prost(message, tag = "2")]
    Mount(MountVolume),
}

/// VolumeCapability.MountVolume.
#[derive(Clone, PartialEq, Message)]
pub struct MountVolume {
    /// Type of the file system; ignored.
    #[prost(string, tag = "1")]
    pub fs_type: String,
    /// Mount options, a `mountOptions` list of Kubernetes.
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
    /// Group of all files.
    #[prost(string, tag = "3")]
    pub volume_mount_group: String,
}

/// VolumeCapability.AccessMode.
#[derive(Clone, PartialEq, Message)]
pub struct AccessMode {
    /// The mode.
    #[prost(enumeration = "Mode", tag = "1")]
    pub mode: i32,
}

/// VolumeCapability.AccessMode.Mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum Mode {
    /// Not specified: invalid.
    Unknown = 0,
    /// Read and write on one node.
    SingleNodeWriter = 1,
    /// Read on one node.
    SingleNodeReaderOnly = 2,
    /// Read on many nodes.
    MultiNodeReaderOnly = 3,
    /// Write on one node, read on many.
    MultiNodeSingleWriter = 4,
    /// Read and write on many nodes.
    MultiNodeMultiWriter = 5,
    /// Read and write in one workload of one node.
    SingleNodeSingleWriter = 6,
    /// Read and write in many workloads of one node.
    SingleNodeMultiWriter = 7,
}

/// Request of CreateVolume.
#[derive(Clone, PartialEq, Message)]
pub struct CreateVolumeRequest {
    /// Name that the container orchestrator suggests, the key of idempotency.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The uses that the volume must support.
    #[prost(message, repeated, tag = "3")]
    pub volume_capabilities: Vec<VolumeCapability>,
    /// Parameters of the storage class.
    #[prost(map = "string, string", tag = "4")]
    pub parameters: HashMap<String, String>,
    /// A snapshot or volume to copy: unsupported.
    #[prost(message, optional, tag = "6")]
    pub volume_content_source: Option<Empty>,
    /// Parameters of a volume attributes class: unsupported.
    #[prost(map = "string, string", tag = "8")]
    pub mutable_parameters: HashMap<String, String>,
}

/// Response of CreateVolume.
#[derive(Clone, PartialEq, Message)]
pub struct CreateVolumeResponse {
    /// The volume.
    #[prost(message, optional, tag = "1")]
    pub volume: Option<Volume>,
}

/// A volume.
#[derive(Clone, PartialEq, Message)]
pub struct Volume {
    /// Capacity in bytes, or 0 if it is unknown.
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
    /// Identifier, unique within the plugin.
    #[prost(string, tag = "2")]
    pub volume_id: String,
    /// Attributes that the node service gets.
    #[prost(map = "string, string", tag = "3")]
    pub volume_context: HashMap<String, String>,
}

/// Request of DeleteVolume.
#[derive(Clone, PartialEq, Message)]
pub struct DeleteVolumeRequest {
    /// Identifier of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
}

/// Request of ValidateVolumeCapabilities.
#[derive(Clone, PartialEq, Message)]
pub struct ValidateVolumeCapabilitiesRequest {
    /// Identifier of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Attributes of the volume.
    #[prost(map = "string, string", tag = "2")]
    pub volume_context: HashMap<String, String>,
    /// The uses to validate.
    #[prost(message, repeated, tag = "3")]
    pub volume_capabilities: Vec<VolumeCapability>,
    /// Parameters of the storage class.
    #[prost(map = "string, string", tag = "4")]
    pub parameters: HashMap<String, String>,
}

/// Response of ValidateVolumeCapabilities.
#[derive(Clone, PartialEq, Message)]
pub struct ValidateVolumeCapabilitiesResponse {
    /// The request's values, if all of them are supported.
    #[prost(message, optional, tag = "1")]
    pub confirmed: Option<Confirmed>,
    /// The reason, if they are not.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// ValidateVolumeCapabilitiesResponse.Confirmed.
#[derive(Clone, PartialEq, Message)]
pub struct Confirmed {
    /// Attributes of the volume.
    #[prost(map = "string, string", tag = "1")]
    pub volume_context: HashMap<String, String>,
    /// The supported uses.
    #[prost(message, repeated, tag = "2")]
    pub volume_capabilities: Vec<VolumeCapability>,
    /// Parameters of the storage class.
    #[prost(map = "string, string", tag = "3")]
    pub parameters: HashMap<String, String>,
}

/// Request of NodeStageVolume.
#[derive(Clone, PartialEq, Message)]
pub struct NodeStageVolumeRequest {
    /// Identifier of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Directory to mount the volume on, which exists.
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    /// The use of the volume.
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
    /// Credentials.
    #[prost(map = "string, string", tag = "5")]
    pub secrets: HashMap<String, String>,
    /// Attributes of the volume.
    #[prost(map = "string, string", tag = "6")]
    pub volume_context: HashMap<String, String>,
}

/// Request of NodeUnstageVolume.
#[derive(Clone, PartialEq, Message)]
pub struct NodeUnstageVolumeRequest {
    /// Identifier of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Directory that the volume is mounted on.
    #[prost(string, tag = "2")]
    pub staging_target_path: String,
}

/// Request of NodePublishVolume.
#[derive(Clone, PartialEq, Message)]
pub struct NodePublishVolumeRequest {
    /// Identifier of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Directory that the volume is staged on; empty for inline volumes.
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    /// Directory to create and to mount the volume on.
    #[prost(string, tag = "4")]
    pub target_path: String,
    /// The use of the volume.
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    /// Whether the workload may only read.
    #[prost(bool, tag = "6")]
    pub readonly: bool,
    /// Credentials.
    #[prost(map = "string, string", tag = "7")]
    pub secrets: HashMap<String, String>,
    /// Attributes of the volume.
    #[prost(map = "string, string", tag = "8")]
    pub volume_context: HashMap<String, String>,
}

/// Request of NodeUnpublishVolume.
#[derive(Clone, PartialEq, Message)]
pub struct NodeUnpublishVolumeRequest {
    /// Identifier of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Directory that the volume is mounted on, to be removed.
    #[prost(string, tag = "2")]
    pub target_path: String,
}

/// Request of NodeGetVolumeStats.
#[derive(Clone, PartialEq, Message)]
pub struct NodeGetVolumeStatsRequest {
    /// Identifier of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Directory that the volume is published or staged on.
    #[prost(string, tag = "2")]
    pub volume_path: String,
}

/// Response of NodeGetVolumeStats.
#[derive(Clone, PartialEq, Message)]
pub struct NodeGetVolumeStatsResponse {
    /// Usage in bytes and in inodes.
    #[prost(message, repeated, tag = "1")]
    pub usage: Vec<VolumeUsage>,
}

/// Usage of a volume.
#[derive(Clone, PartialEq, Message)]
pub struct VolumeUsage {
    /// Available to users other than root.
    #[prost(int64, tag = "1")]
    pub available: i64,
    /// Size of the volume.
    #[prost(int64, tag = "2")]
    pub total: i64,
    /// In use.
    #[prost(int64, tag = "3")]
    pub used: i64,
    /// The unit of these numbers.
    #[prost(enumeration = "Unit", tag = "4")]
    pub unit: i32,
}

/// VolumeUsage.Unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// Not specified.
    Unknown = 0,
    /// Bytes.
    Bytes = 1,
    /// Inodes.
    Inodes = 2,
}

/// Request of NodeGetVolumeHealth.
#[derive(Clone, PartialEq, Message)]
pub struct NodeGetVolumeHealthRequest {
    /// Identifier of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Directory that the volume is published on, if it is known.
    #[prost(string, tag = "2")]
    pub volume_publish_path: String,
    /// Directory that the volume is staged on, if it is known.
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
}

/// Response of NodeGetVolumeHealth.
#[derive(Clone, PartialEq, Message)]
pub struct NodeGetVolumeHealthResponse {
    /// The volume's health.
    #[prost(message, optional, tag = "1")]
    pub volume_health: Option<VolumeHealth>,
}

/// The health of a volume.
#[derive(Clone, PartialEq, Message)]
pub struct VolumeHealth {
    /// Identifier of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Adverse conditions.
    #[prost(message, repeated, tag = "2")]
    pub health_statuses: Vec<HealthEntry>,
}

/// VolumeHealth.VolumeHealthEntry.
#[derive(Clone, PartialEq, Message)]
pub struct HealthEntry {
    /// The kind of condition.
    #[prost(enumeration = "HealthError", tag = "1")]
    pub status: i32,
    /// The condition in CamelCase, for programs.
    #[prost(string, tag = "2")]
    pub reason: String,
    /// The condition for people.
    #[prost(string, tag = "3")]
    pub message: String,
}

/// VolumeHealthErrorType.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum HealthError {
    /// Not specified.
    Unknown = 0,
    /// Usable with restrictions.
    Degraded = 1,
    /// Not accessible.
    Inaccessible = 2,
}

/// Response of NodeGetInfo.
#[derive(Clone, PartialEq, Message)]
pub struct NodeGetInfoResponse {
    /// Name of the node.
    #[prost(string, tag = "1")]
    pub node_id: String,
    /// Most volumes that the node can have, or 0 for no limit of the plugin's.
    #[prost(int64, tag = "2")]
    pub max_volumes_per_node: i64,
}
