//! `barge virtiofsd`: serves one directory over virtiofs with the options of virtiofsd 1.14, for
//! programs that start virtiofsd: libvirt, Kata, microvm tools.

pub(crate) mod args;
mod capabilities;
mod compat;
mod ids;

use std::io::{Write, stdout};

use layers::gate::AccessPolicy;
use layers::squash::SquashMode;
use layers::{IdMap, MapIds, Squash, Translation};
use serde_json::json;
use transports::Addr;

use self::args::{Handles, Sandbox, Seccomp, VirtiofsdArgs};
use super::args::device::SocketArg;
use super::args::virtiofs::{Cache, POSIX_ACL};
use super::endpoints::virtiofs::Virtiofs;
use super::plan::Plan;
use super::share::{Share, Sources};
use super::vhost::VhostOptions;
use crate::Failure;
use crate::source::{NamedSource, Source};

/// Returns the plan of `args` after it has limited this process as they say, or prints the
/// capabilities of the program and returns `None` if that was requested.
pub(super) fn prepare(args: &VirtiofsdArgs) -> Result<Option<Plan>, Failure> {
    if args.print_capabilities {
        print_capabilities()?;
        return Ok(None);
    }
    let plan = args.plan()?;
    args.log_unsupported_options();
    sys::limits::limit_heaps();
    args.limit_descriptors()?;
    args.drop_capabilities()?;
    Ok(Some(plan))
}

/// The supported features beyond the options that every vhost-user file system program has (QEMU's
/// `docs/interop/vhost-user.json`, virtiofsd's README).
const FEATURES: [&str; 3] = [
    "posix-acl-negotiation-mode",
    "security-label-negotiation-mode",
    "separate-options",
];

fn print_capabilities() -> Result<(), Failure> {
    let capabilities = json!({ "type": "fs", "features": FEATURES });
    writeln!(stdout(), "{capabilities:#}")
        .map_err(|error| Failure::new(format!("standard output: {error}")))
}

impl VirtiofsdArgs {
    fn plan(&self) -> Result<Plan, Failure> {
        let dir = self.shared_dir.clone().ok_or_else(|| {
            Failure::usage("expected --shared-dir, or -o source=, with the directory to share")
        })?;
        if !dir.is_dir() {
            let shown = dir.display();
            return Err(Failure::new(format!("{shown}: expected a directory")));
        }
        let addr = match (self.fd, &self.socket_path) {
            (Some(fd), _) => Addr::Fd(fd),
            (None, Some(path)) => Addr::Unix(path.clone()),
            (None, None) => return Err(Failure::usage("expected --socket-path or --fd")),
        };
        let root = rustix::process::geteuid().is_root();
        let default = engine::Tuning::default();
        let translated = self.translated()?;
        Ok(Plan {
            sources: Sources {
                shares: vec![Share {
                    named: NamedSource {
                        name: None,
                        source: Source::Tree(barge_client::Source::HostDir(dir)),
                    },
                    read_trace: None,
                    hostdir: hostdir::Options {
                        identity: match root {
                            true => hostdir::Identity::Switch,
                            false => hostdir::Identity::Fixed,
                        },
                        // As in virtiofsd, which then performs all operations but creation as the
                        // super-user.
                        super_user: match &translated {
                            Some(ids) if self.uid_map.is_empty() => {
                                ids.uids.to_host(0).unwrap_or(0)
                            }
                            _ => 0,
                        },
                        no_kernel_handles: self.inode_file_handles == Handles::Never,
                        ..Default::default()
                    },
                    overlay: None,
                    fd_passing: false,
                    xattrs: self.xattrmap.clone(),
                    ids: self
                        .namespace(root)?
                        .into_iter()
                        .chain(translated)
                        .collect(),
                    access: AccessPolicy {
                        squash: Squash::new(SquashMode::None),
                        read_only: self.readonly,
                        clients: None,
                    },
                }],
                client_lists: Vec::new(),
                reloadable: false,
                kernel_handles: self.inode_file_handles == Handles::Mandatory,
                record_calls: None,
            },
            file: None,
            endpoints: vec![Box::new(Virtiofs::new(
                vec![SocketArg { name: None, addr }],
                self.fuse(),
                self.tag,
                VhostOptions {
                    once: true,
                    ..Default::default()
                },
            ))],
            socket_group: self.socket_group.clone(),
            trust: Default::default(),
            tuning: engine::Tuning {
                workers: match self.thread_pool_size {
                    0 => default.workers,
                    // At least two, so that a worker that waits for a lock does not block all other
                    // requests.
                    size => size.max(2).into(),
                },
                ..default
            },
            run: None,
        })
    }

    fn fuse(&self) -> fuse::server::Options {
        use fuse::numbers::InitFlags;
        let required = self.posix_acl.required(POSIX_ACL)
            | self.security_label.required(InitFlags::SECURITY_CTX);
        let posix_acl = self.posix_acl.is_offered();
        let security_label = self.security_label.is_offered();
        fuse::server::Options {
            cache: self.cache.into(),
            writeback: self.writeback,
            allow_direct_io: self.allow_direct_io,
            xattr: self.xattr || self.xattrmap.is_some() || posix_acl || security_label,
            posix_acl,
            security_label,
            required,
            readdirplus: !self.no_readdirplus && self.cache != Cache::Never,
            announce_submounts: !self.no_announce_submounts,
            posix_locks: !self.no_posix_lock,
            flock: !self.no_flock,
            killpriv_v2: !self.no_killpriv_v2,
            allow_mmap: self.allow_mmap,
            noatime: self.preserve_noatime,
            ..Default::default()
        }
    }

    /// Returns the id maps of `--uid-map` and `--gid-map`, which are the layer next to the source.
    fn namespace(&self, root: bool) -> Result<Option<MapIds>, Failure> {
        if self.uid_map.is_empty() && self.gid_map.is_empty() {
            return Ok(None);
        }
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let own = |id: u32| (!root).then_some(id);
        Ok(Some(MapIds {
            uids: ids::namespace("--uid-map", &self.uid_map, own(uid.as_raw()))?,
            gids: ids::namespace("--gid-map", &self.gid_map, own(gid.as_raw()))?,
        }))
    }

    fn translated(&self) -> Result<Option<MapIds>, Failure> {
        if self.translate_uid.is_empty() && self.translate_gid.is_empty() {
            return Ok(None);
        }
        let map = |option: &str, translations: &[Translation]| {
            IdMap::translate(translations).map_err(|bad| Failure::usage(format!("{option}: {bad}")))
        };
        Ok(Some(MapIds {
            uids: map("--translate-uid", &self.translate_uid)?,
            gids: map("--translate-gid", &self.translate_gid)?,
        }))
    }

    /// Logs the requested options and defaults of virtiofsd that are accepted without their effect.
    fn log_unsupported_options(&self) {
        if self.sandbox != Sandbox::None {
            tracing::info!(
                "--sandbox has no effect: the kernel resolves each name beneath the shared directory (openat2), \
                 and follows no symbolic links"
            );
        }
        if self.seccomp != Seccomp::None {
            tracing::info!("--seccomp has no effect: no system calls are filtered");
        }
        if self.migrates() {
            tracing::info!(
                "--migration options have no effect: the device does not offer migration"
            );
        }
    }

    fn limit_descriptors(&self) -> Result<(), Failure> {
        match self.rlimit_nofile {
            None => {
                sys::limits::raise_descriptors();
                Ok(())
            }
            Some(0) => Ok(()),
            Some(limit) => sys::limits::set_descriptors(limit)
                .map_err(|error| Failure::new(format!("--rlimit-nofile {limit}: {error}"))),
        }
    }

    /// Drops capabilities if this process runs as the super-user, as virtiofsd does.
    fn drop_capabilities(&self) -> Result<(), Failure> {
        let handles = self.inode_file_handles != Handles::Never;
        let kept = self.modcaps.apply(handles).map_err(Failure::usage)?;
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        sys::caps::drop_all_except(kept)
            .map_err(|error| Failure::new(format!("capabilities: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packaged_description_says_what_the_program_says() {
        let packaged = include_str!("../../../../packaging/vhost-user/50-barge.json");
        let packaged: serde_json::Value = serde_json::from_str(packaged).expect("JSON");
        assert_eq!(packaged["type"], "fs");
        assert_eq!(packaged["features"], json!(FEATURES));
    }
}
