//! Options of `barge-csi`: the one definition for its help and for the man page, which `barge man`
//! writes.

use std::path::PathBuf;

use clap::Parser;

use crate::log::LogArgs;
use crate::values::size;

/// CSI plugin: volumes of Kubernetes from images, directories, servers and object stores
#[derive(Parser)]
#[command(name = "barge-csi", version, max_term_width = 100)]
pub struct CsiArgs {
    /// Unix socket to serve CSI on: unix://PATH
    ///
    /// Its mode is 0600. A socket that no process serves is replaced.
    #[arg(long, value_name = "URL", value_parser = socket_path)]
    pub endpoint: PathBuf,
    /// Name of this node in the orchestrator
    #[arg(long, value_name = "NAME", value_parser = node_id)]
    pub node_id: String,
    /// Name of the plugin, as in the CSIDriver object
    #[arg(long, value_name = "NAME", default_value = "barge.csi", value_parser = driver_name)]
    pub driver_name: String,
    /// Directory that volumes may use directories and images beneath; may be repeated
    ///
    /// Without it, volumes use servers and object stores alone. Symbolic links beneath DIR are not
    /// followed.
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    pub allow_path: Vec<PathBuf>,
    /// Source that inline volumes may be, or be beneath; may be repeated
    ///
    /// A URL such as s3://BUCKET, az://CONTAINER@ACCOUNT or https://HOST/DIR, or a path that
    /// --allow-path allows too.
    /// Without it, inline volumes are refused: everyone who may create a pod can write one.
    #[arg(long, value_name = "SOURCE", value_parser = allowed_source)]
    pub allow_inline: Vec<String>,
    /// Disk cache for images in object stores [default: none]
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    pub cache_dir: Option<PathBuf>,
    /// Maximum size of the disk cache, such as 500M or 20G [default: 10G]
    #[arg(long, value_name = "SIZE", requires = "cache_dir", value_parser = size)]
    pub cache_dir_size: Option<String>,
    /// The program barge [default: beside this program, or in PATH]
    #[arg(long, value_name = "PATH")]
    pub barge: Option<PathBuf>,
    /// Directory for files that exist while a volume is being mounted
    #[arg(long, value_name = "DIR", default_value = "/run/barge-csi", value_parser = absolute)]
    pub state_dir: PathBuf,
    /// Control group (version 2) for the processes of mounts, such as /sys/fs/cgroup/barge-csi
    ///
    /// In a container it lets mounts survive a restart of the container, if the container shares
    /// the host's PID namespace. The group is created.
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    pub cgroup: Option<PathBuf>,
    /// Options of logging.
    #[command(flatten)]
    pub log: LogArgs,
}

fn socket_path(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").or(text.strip_prefix("unix:"));
    absolute(path.unwrap_or(text)).map_err(|_| "expected unix://PATH with an absolute path".into())
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let plain = text.split('/').all(|part| part != "." && part != "..");
    match text.starts_with('/') && plain && !text.contains(',') {
        true => Ok(text.into()),
        false => Err("expected an absolute path without '.', '..' and commas".into()),
    }
}

fn node_id(text: &str) -> Result<String, String> {
    let good = !text.is_empty() && text.len() <= 256 && !text.contains(char::is_control);
    good.then(|| text.into())
        .ok_or_else(|| "expected 1 to 256 bytes".into())
}

fn driver_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    let ends = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    (text.len() <= 63 && text.chars().all(plain) && ends(text))
        .then(|| text.into())
        .ok_or_else(|| "expected at most 63 letters, digits, dots and hyphens".into())
}

fn allowed_source(text: &str) -> Result<String, String> {
    let url = text.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty() && !rest.is_empty() && !rest.contains(['?', '%'])
    });
    if !url && text != "mem:" && absolute(text).is_err() {
        return Err("expected a URL without parameters, an absolute path or mem:".into());
    }
    check_account(text)?;
    Ok(text.into())
}

/// Checks a source of `--allow-inline`. A container of Azure belongs to an account: without it, the
/// author of a pod would choose the account.
pub fn check_account(text: &str) -> Result<(), String> {
    match text.strip_prefix("az://") {
        Some(rest) if !has_account(rest) => {
            let container = rest.split('/').next().unwrap_or_default();
            Err(format!(
                "expected az://CONTAINER@ACCOUNT, such as az://{container}@ACCOUNT: the container \
                 alone is that of any account"
            ))
        }
        _ => Ok(()),
    }
}

/// Returns whether the first component of a path is `CONTAINER@ACCOUNT`.
fn has_account(path: &str) -> bool {
    let first = path.split('/').next().unwrap_or_default();
    first
        .split_once('@')
        .is_some_and(|(container, account)| !container.is_empty() && !account.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        CsiArgs::command().debug_assert();
        for bad in [
            &["barge-csi"][..],
            &["barge-csi", "--endpoint", "unix:///s"],
            &["barge-csi", "--endpoint", "tcp://h:1", "--node-id", "n"],
            &["barge-csi", "--endpoint", "unix:///s", "--node-id", ""],
            &[
                "barge-csi",
                "--endpoint",
                "unix:///s",
                "--node-id",
                "n",
                "--allow-path",
                "srv",
            ],
            &[
                "barge-csi",
                "--endpoint",
                "unix:///s",
                "--node-id",
                "n",
                "--allow-inline",
                "s3:",
            ],
            &[
                "barge-csi",
                "--endpoint",
                "unix:///s",
                "--node-id",
                "n",
                "--allow-inline",
                "az://container/dir",
            ],
            &[
                "barge-csi",
                "--endpoint",
                "unix:///s",
                "--node-id",
                "n",
                "--driver-name",
                "a_b",
            ],
        ] {
            assert!(CsiArgs::try_parse_from(bad).is_err(), "{bad:?}");
        }
        let good = [
            "barge-csi",
            "--endpoint",
            "unix:///csi/csi.sock",
            "--node-id",
            "n",
        ];
        let serve = CsiArgs::try_parse_from(good).expect("good");
        assert_eq!(serve.endpoint, PathBuf::from("/csi/csi.sock"));
        assert!(serve.allow_path.is_empty() && serve.allow_inline.is_empty());
    }
}
