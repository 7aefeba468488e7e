//! Identifiers of provisioned volumes, which contain all that DeleteVolume needs: an orchestrator
//! passes nothing else.
//!
//! The form is that of other provisioners of directories, with the source in place of a server and
//! a share: `SOURCE#SUBDIR#NAME#ONDELETE`. NAME is the volume's name if it differs from SUBDIR, so
//! that volumes on one directory have different identifiers.

use std::fmt;
use std::str::FromStr;

use tonic::Status;

use crate::paths::sub_dir;

/// The fate of a volume's directory when the volume is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDelete {
    /// The directory is removed with its contents.
    Delete,
    /// The directory stays.
    Retain,
}

impl FromStr for OnDelete {
    type Err = Status;

    fn from_str(text: &str) -> Result<OnDelete, Status> {
        match text {
            "" | "delete" => Ok(OnDelete::Delete),
            "retain" => Ok(OnDelete::Retain),
            other => Err(Status::invalid_argument(format!(
                "onDelete: expected delete or retain, got '{}'",
                other.escape_debug()
            ))),
        }
    }
}

/// A provisioned volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeId {
    /// The shared directory.
    pub source: String,
    /// The volume's directory beneath it.
    pub sub_dir: String,
    /// The volume's name, or empty if that is `sub_dir`.
    pub name: String,
    /// The fate of the directory.
    pub on_delete: OnDelete,
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on_delete = match self.on_delete {
            OnDelete::Delete => "",
            OnDelete::Retain => "retain",
        };
        write!(
            f,
            "{}#{}#{}#{on_delete}",
            self.source, self.sub_dir, self.name
        )
    }
}

impl FromStr for VolumeId {
    type Err = Status;

    fn from_str(text: &str) -> Result<VolumeId, Status> {
        let parts: Vec<&str> = text.split('#').collect();
        let [source, path, name, on_delete] = parts[..] else {
            let text = "not an identifier of a volume that this plugin created";
            return Err(Status::invalid_argument(text));
        };
        sub_dir(path)?;
        Ok(VolumeId {
            source: source.into(),
            sub_dir: path.into(),
            name: name.into(),
            on_delete: on_delete.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_read_as_it_was_written() {
        for on_delete in [OnDelete::Delete, OnDelete::Retain] {
            let id = VolumeId {
                source: "nfs://server/export?vers=4.2".into(),
                sub_dir: "team/pvc-1".into(),
                name: "pvc-1".into(),
                on_delete,
            };
            assert_eq!(id.to_string().parse::<VolumeId>().expect("good"), id);
        }
    }

    #[test]
    fn identifiers_of_others_are_refused() {
        for bad in [
            "",
            "vol",
            "a#b#c",
            "a#b#c#delete#more",
            "/srv#../etc##",
            "/srv#.##",
            "/srv###",
            "/srv#a##archive",
        ] {
            assert!(bad.parse::<VolumeId>().is_err(), "{bad}");
        }
    }
}
