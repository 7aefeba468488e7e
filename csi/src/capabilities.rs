//! Checks of the uses of a volume that a request names, and of the sizes of its fields.

use std::collections::HashMap;

use tonic::Status;

use crate::proto::{AccessType, Mode, MountVolume, VolumeCapability};

/// The longest volume identifier, bytes. Identifiers of provisioned volumes contain a URL and a
/// path, so they can exceed the 128 bytes that the specification recommends.
const MAX_VOLUME_ID: usize = 2048;

/// The most entries of a map, and bytes of a value. A value may be a public key or a service
/// account key.
const MAX_ENTRIES: usize = 64;
const MAX_VALUE: usize = 16 << 10;

/// A supported use of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Whether no workload may write.
    pub(crate) read_only: bool,
    /// Whether only one workload may use the volume.
    pub(crate) single_writer: bool,
    /// Mount options of the orchestrator.
    pub(crate) mount_flags: Vec<String>,
}

/// Checks a volume identifier: not empty, of bounded length, without control characters.
pub(crate) fn volume_id(id: &str) -> Result<&str, Status> {
    match id {
        "" => Err(Status::invalid_argument("volume_id is missing")),
        _ if id.len() > MAX_VOLUME_ID => {
            let text = format!("volume_id is longer than {MAX_VOLUME_ID} bytes");
            Err(Status::invalid_argument(text))
        }
        _ if id.contains(char::is_control) => {
            let text = "volume_id contains a control character";
            Err(Status::invalid_argument(text))
        }
        _ => Ok(id),
    }
}

/// Checks the sizes of a map. `what` names it in the error, which contains no value of it.
pub(crate) fn bounded(what: &str, map: &HashMap<String, String>) -> Result<(), Status> {
    let long = |(key, value): (&String, &String)| key.len() > 256 || value.len() > MAX_VALUE;
    if map.len() > MAX_ENTRIES || map.iter().any(long) {
        let text = format!(
            "{what}: more than {MAX_ENTRIES} entries, or one of more than {MAX_VALUE} bytes"
        );
        return Err(Status::invalid_argument(text));
    }
    Ok(())
}

/// Checks the use of a volume: a file system with a known access mode. Returns `INVALID_ARGUMENT`
/// otherwise.
pub(crate) fn usage(capability: Option<&VolumeCapability>) -> Result<Usage, Status> {
    let capability =
        capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))?;
    let mount = match &capability.access_type {
        Some(AccessType::Mount(mount)) => mount,
        Some(AccessType::Block(_)) => {
            let text = "block volumes are not supported: expected access type mount";
            return Err(Status::invalid_argument(text));
        }
        None => {
            let text = "volume_capability has no access type";
            return Err(Status::invalid_argument(text));
        }
    };
    let mode = capability.access_mode.as_ref().map_or(0, |mode| mode.mode);
    let (read_only, single_writer) = match Mode::try_from(mode) {
        Ok(Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly) => (true, false),
        Ok(Mode::SingleNodeSingleWriter) => (false, true),
        Ok(Mode::Unknown) | Err(_) => {
            let text = format!("unknown access mode {mode}");
            return Err(Status::invalid_argument(text));
        }
        Ok(_) => (false, false),
    };
    let MountVolume {
        mount_flags,
        volume_mount_group,
        ..
    } = mount;
    if mount_flags.len() > MAX_ENTRIES || mount_flags.iter().any(|flag| flag.len() > 256) {
        let text = format!("more than {MAX_ENTRIES} mount options, or one of more than 256 bytes");
        return Err(Status::invalid_argument(text));
    }
    if !volume_mount_group.is_empty() {
        let text = "volume_mount_group is not supported: use the mount option gid=";
        return Err(Status::invalid_argument(text));
    }
    Ok(Usage {
        read_only,
        single_writer,
        mount_flags: mount_flags.clone(),
    })
}

/// Checks all uses of a volume, of which there must be one at least.
pub(crate) fn usages(capabilities: &[VolumeCapability]) -> Result<(), Status> {
    if capabilities.is_empty() {
        let text = "volume_capabilities are missing";
        return Err(Status::invalid_argument(text));
    }
    capabilities
        .iter()
        .try_for_each(|capability| usage(Some(capability)).map(drop))
}
