//! `barge virtiofsd`: serves one directory over virtiofs with the options of virtiofsd 1.14, for
//! programs that start virtiofsd: libvirt, Kata, microvm tools.

pub(crate) mod args;
mod compat;
mod confinement;
mod ids;

use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use command::print;
use fuse::server::Migration;
use layers::disk_quota::DiskLimits;
use layers::gate::AccessPolicy;
use layers::hide::Rules;
use layers::limit::Limits;
use layers::squash::SquashMode;
use layers::{IdMap, MapIds, Squash, Translation};
use rustix::thread::CapabilitySet;
use serde_json::json;
use transports::{Addr, Listener};

use self::args::{Handles, Sandbox, VirtiofsdArgs};
use super::args::control::ReadyFormat;
use super::args::device::{SocketArg, VirtiofsDevice};
use super::args::virtiofs::{Cache, POSIX_ACL};
use super::broker::Part;
use super::broker::confinement::ConfinementPlan;
use super::endpoints::virtiofs::Virtiofs;
use super::plan::Plan;
use super::share::{Share, Sources};
use super::users;
use super::vhost::VhostOptions;
use crate::Failure;
use crate::listen::listen;
use crate::source::{NamedSource, Source};

/// The result of [`prepare`].
pub(super) enum Prepared {
    /// The capabilities were printed, or the second process has served.
    Done(ExitCode),
    /// This process serves. The listener, if any, removes its socket when dropped.
    Serve(Box<Plan>, Option<Listener>),
}

/// Limits this process as `args` say, and returns the plan to serve; or starts the process that
/// serves, and waits for it.
pub(super) fn prepare(args: &VirtiofsdArgs) -> Result<Prepared, Failure> {
    if args.print_capabilities {
        print_capabilities()?;
        return Ok(Prepared::Done(ExitCode::SUCCESS));
    }
    let dir = args.dir()?;
    let (mut addr, mut socket) = (args.addr()?, None);
    if args.confined_fd.is_some() {
        confinement::end_with_parent()?;
    } else {
        args.plan(&dir, &addr)?;
        let group = users::socket_group(args.socket_group.as_deref())?;
        let listener = listen(&addr, group)?;
        if args.sandbox != Some(Sandbox::None) {
            return args.serve_in_child(&listener).map(Prepared::Done);
        }
        // Open until the process ends, as an inherited one.
        let inherited = listener.inheritable().map_err(Failure::new)?;
        addr = Addr::Fd(inherited.into_raw_fd());
        socket = Some(listener);
    }
    let plan = args.plan(&dir, &addr)?;
    sys::limits::limit_heaps();
    args.limit_descriptors()?;
    args.confine(&dir, args.capabilities()?)?;
    Ok(Prepared::Serve(Box::new(plan), socket))
}

/// The supported features beyond the options that every vhost-user file system program has (QEMU's
/// `docs/interop/vhost-user.json`, virtiofsd's README).
const FEATURES: [&str; 4] = [
    "migrate-precopy",
    "posix-acl-negotiation-mode",
    "security-label-negotiation-mode",
    "separate-options",
];

fn print_capabilities() -> Result<(), Failure> {
    let capabilities = json!({ "type": "fs", "features": FEATURES });
    print(format!("{capabilities:#}\n"))
}

impl VirtiofsdArgs {
    /// Returns the shared directory, without symbolic links.
    fn dir(&self) -> Result<PathBuf, Failure> {
        let dir = self.shared_dir.as_ref().ok_or_else(|| {
            Failure::usage("expected --shared-dir, or -o source=, with the directory to share")
        })?;
        match dir.canonicalize() {
            Ok(dir) if dir.is_dir() => Ok(dir),
            Ok(_) => Err(Failure::new(format!(
                "{}: expected a directory",
                dir.display()
            ))),
            Err(error) => Err(Failure::new(format!("{}: {error}", dir.display()))),
        }
    }

    /// Returns the address to listen at.
    fn addr(&self) -> Result<Addr, Failure> {
        match (self.confined_fd.or(self.fd), &self.socket_path) {
            (Some(fd), _) => Ok(Addr::Fd(fd)),
            (None, Some(path)) => Ok(Addr::Unix(path.clone())),
            (None, None) => Err(Failure::usage("expected --socket-path or --fd")),
        }
    }

    /// Returns the plan to serve `dir` at `addr`.
    fn plan(&self, dir: &Path, addr: &Addr) -> Result<Plan, Failure> {
        let root = rustix::process::geteuid().is_root();
        let default = engine::Tuning::default();
        let translated = self.translated()?;
        Ok(Plan {
            #[cfg(feature = "otel")]
            otlp: None,
            nfs_state: None,
            default_addrs: None,
            sources: Sources {
                shares: vec![Share {
                    objects: Vec::new(),
                    released: false,
                    named: NamedSource {
                        name: None,
                        source: Source::Tree(sources::Source::HostDir(dir.to_owned())),
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
                        no_user_database: true,
                        no_kernel_handles: self.inode_file_handles == Handles::Never,
                        ..Default::default()
                    },
                    overlay: None,
                    fd_passing: false,
                    files: Vec::new(),
                    hidden: Rules::default(),
                    quota: DiskLimits::default(),
                    xattrs: self.xattrmap.clone(),
                    ids: self
                        .namespace(root)?
                        .into_iter()
                        .chain(translated)
                        .collect(),
                    access: AccessPolicy {
                        squash: Squash::new(SquashMode::None),
                        read_only: self.readonly,
                        admission: Arc::default(),
                    },
                    limits: Limits::default(),
                }],
                client_lists: Vec::new(),
                reloadable: false,
                socket_group: None,
                kernel_handles: self.inode_file_handles == Handles::Mandatory,
                record_calls: None,
            },
            config: None,
            endpoints: vec![Box::new(Virtiofs::new(
                vec![VirtiofsDevice {
                    socket: SocketArg {
                        name: None,
                        addr: addr.clone(),
                    },
                    tag: self.tag.clone().unwrap_or_default(),
                }],
                self.fuse(),
                VhostOptions {
                    once: true,
                    ..Default::default()
                },
            ))],
            socket_group: match addr {
                Addr::Unix(_) => self.socket_group.clone(),
                // Its owner has chosen who may connect.
                _ => None,
            },
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
            control: None,
            ready: ReadyFormat::Text,
            pidfile: None,
            confinement: ConfinementPlan::NONE,
            part: Part::Whole,
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
            posix_locks: self.posix_lock,
            flock: self.flock,
            killpriv_v2: !self.no_killpriv_v2,
            allow_mmap: self.allow_mmap,
            noatime: self.preserve_noatime,
            migration: Migration {
                mode: self.migration_mode.into(),
                on_error: self.migration_on_error.into(),
                verify_handles: self.migration_verify_handles,
            },
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

    /// Returns the capabilities to keep: as virtiofsd, those that the super-user's service takes.
    fn capabilities(&self) -> Result<CapabilitySet, Failure> {
        let handles = self.inode_file_handles != Handles::Never;
        let kept = self.modcaps.apply(handles).map_err(Failure::usage)?;
        // Those in a user namespace, which are all, reach no file that the user does not.
        Ok(
            match rustix::process::geteuid().is_root() || !self.in_namespaces() {
                true => kept,
                false => CapabilitySet::empty(),
            },
        )
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
