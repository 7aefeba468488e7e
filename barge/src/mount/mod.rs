//! `barge mount`: mounts a source on a directory of this host with FUSE, or an image with the
//! kernel's EROFS if possible: directly ([`kernel`]), or from a local file that is filled when it
//! is read ([`lazy`]).
//!
//! A FUSE mount has two processes: the holder mounts and unmounts ([`FuseMount`]), and the other
//! one opens the source and serves ([`server`]).

mod client_owner;
mod kernel;
mod lazy;
mod memory;
mod notify;
pub(crate) mod options;
mod passthrough;
mod readahead;
mod remount;
mod server;
mod takeover;

use std::io::{self, Write, stdout};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::Args;
use remote::ClientOwner;
use serde_json::json;
use transports::Listener;
use transports::fusedev::{Mount, MountFlag, MountOptions};

use self::client_owner::MountedClient;
use self::options::MountOption;
use crate::files::{ErrorReporter, finish_output};
use crate::holder::{HeldMount, Holder, hold};
use crate::listen::listen;
use crate::source::Source;
use crate::{CommandResult, Failure, arguments, background, diagnose, signals};

#[derive(Args)]
#[allow(
    rustdoc::broken_intra_doc_links,
    reason = "brackets in help are no links"
)]
pub(crate) struct MountArgs {
    /// Source to mount: a directory, an image or a URL
    ///
    /// PATH, dir:PATH, image:PATH, mem:, 9p://HOST[:PORT]/ANAME, 9p+unix:SOCKET,
    /// nfs://HOST[:PORT]/PATH, virtiofs:SOCKET, or an image in an object store (s3://BUCKET/KEY,
    /// gs://BUCKET/KEY, az://CONTAINER@ACCOUNT/KEY, https://HOST/PATH) or in an OCI registry
    /// (oci://HOST/REPOSITORY[:TAG|@DIGEST]).
    source: Source,
    /// Directory to mount it on
    dir: PathBuf,
    /// Mount options
    ///
    /// Options of mount(8) and mount.fuse3(8): ro, allow_other, suid, dev (default: nosuid and
    /// nodev), noexec, noatime, sync, fsname=NAME; remount changes ro, rw and the like of an
    /// existing mount. Options for fstab alone are ignored.
    ///
    /// cache=none|readahead|mmap|loose is the page cache of this program, named as for Linux's 9P
    /// client (default for a remote source: mmap), and cache_size=BYTES its memory (default: 64M).
    /// none disables all caching; loose enables the kernel's write-back cache too.
    /// cache=never|metadata|auto|always is for caching by the kernel alone (default for images
    /// without --overlay: always, for other sources: auto). writeback enables the kernel's
    /// write-back cache; it is safe only if no other client or program changes the source.
    ///
    /// passthrough=auto|off determines whether the kernel reads and writes files itself: those of a
    /// local directory, and those that a server over 9p+unix: passes with `barge serve
    /// --9p-fd-passing`. auto, the default, applies to root, from Linux 6.9 on, not with ro,
    /// http=, writeback or cache=metadata, always or loose, and to a directory with cache=auto or
    /// never only.
    ///
    /// notify=auto|writes|off determines whether the kernel is notified of changes of a directory
    /// by others, and caches longer. auto, the default, applies to root and cache=auto: names and
    /// the attributes of directories and links are valid for a minute instead of a second. writes
    /// extends that to the attributes of files, but then small writes to all files of the
    /// directory's file system take 2.5 times as long.
    ///
    /// uid=N and gid=N replace the owner and group of all files. soft lets calls fail that the
    /// server does not answer within timeo=TENTHS of a second (default: 600). retry=SECONDS limits
    /// the wait for a lost server (default: 60). hard waits without limit in both cases.
    ///
    /// cache_dir=DIR is a disk cache for files of another server or data of an image, of
    /// cache_dir_size=BYTES at most (default: 10G). As root, an image in an object store or a
    /// registry has one in /var/cache/barge/images by default, and is mounted from there with the
    /// kernel's EROFS; so is an image with --verify-key. http=ADDR serves the status page, as
    /// `barge serve --http` does, for root, the own user and those of http_admit=USER (may be
    /// repeated; '*' admits all), and slow_ms=MS is --slow-ms.
    ///
    /// sandbox=namespace|landlock|none and seccomp=kill|errno|log|trap|none confine the process
    /// that serves the mount, as the options of `barge serve` do (default: namespace as root,
    /// otherwise landlock; kill, or errno for a source on another server).
    #[arg(short, long = "options", value_name = "OPTION", value_delimiter = ',')]
    options: Vec<MountOption>,
    /// Stay in the foreground and print 'ready' to standard output
    #[arg(short, long)]
    foreground: bool,
    /// Print an object as JSON once it is mounted
    ///
    /// It has source, mountpoint, backend (fuse or erofs), read_only, and pid, which is null if no
    /// process serves the mount.
    #[arg(long)]
    json: bool,
    /// Mount an image with FUSE even if the kernel could mount it itself
    ///
    /// So does any option that only FUSE supports.
    #[arg(long)]
    fuse: bool,
    /// Directory to store changes in, which makes a read-only source such as an image writable
    ///
    /// The format is that of Linux's overlayfs (DIR/upper, DIR/work).
    #[arg(long, value_name = "DIR")]
    overlay: Option<PathBuf>,
    /// Public key that must have signed the image (PEM, Ed25519); may be repeated
    ///
    /// With several keys, the image must be signed with one of them. All data is verified before it
    /// is used.
    #[arg(long, value_name = "FILE")]
    verify_key: Vec<PathBuf>,
    /// Public key that must have signed the image with cosign (PEM, ECDSA P-256 or Ed25519); may be
    /// repeated
    ///
    /// For images in registries. The signature is of the manifest, which vouches for all data, and
    /// is verified before any other part of the image is used. With several keys, one of them must
    /// have signed. Certificates and transparency logs are not consulted.
    #[arg(long, value_name = "FILE")]
    cosign_key: Vec<PathBuf>,
    /// Log each request that takes longer than this, ms [default: off]
    ///
    /// As `barge serve --slow-ms`; slow_ms=MS as an option for fstab. Reads and writes of files
    /// that the kernel does itself are no requests (passthrough). An image is mounted with FUSE
    /// then.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..))]
    slow_ms: Option<u32>,
    /// OpenTelemetry collector to send metrics and traces to
    ///
    /// As `barge serve --otlp`; otlp=URL as an option for fstab. An image is mounted with FUSE
    /// then.
    #[cfg(feature = "otel")]
    #[arg(long, value_name = "URL")]
    otlp: Option<crate::otel::Url>,
    /// File to record accesses to, for barge pack --trace
    ///
    /// The parts of files that are read are recorded in order. An image is mounted with FUSE then.
    #[arg(long, value_name = "FILE")]
    record_trace: Option<PathBuf>,
    /// Further arguments that mount(8) passes to its helpers.
    #[command(flatten)]
    helper: HelperArgs,
}

/// Options of external helpers (mount(8)). `-n` and `-t` have no effect; `-f` is not a fake mount
/// as in mount(8), which does not run helpers for that.
#[derive(Args)]
pub(crate) struct HelperArgs {
    /// Do not write to /etc/mtab
    #[arg(short, hide = true)]
    n: bool,
    /// Ignore unknown options
    #[arg(short = 's', hide = true)]
    sloppy: bool,
    /// File system type that mount(8) was called with
    #[arg(short, hide = true, value_name = "TYPE")]
    t: Option<String>,
}

impl MountArgs {
    /// Returns whether an option excludes a mount with the kernel's EROFS.
    fn requires_fuse(&self) -> bool {
        self.fuse || self.record_trace.is_some()
    }

    /// Returns the text that reports that this process holds the mount.
    fn ready_text(&self, backend: Backend, read_only: bool) -> String {
        match self.json {
            true => self.report(backend, read_only, Some(std::process::id())),
            false => background::READY.to_owned(),
        }
    }

    /// Returns the object of --json, as a line. `process` holds the mount.
    fn report(&self, backend: Backend, read_only: bool, process: Option<u32>) -> String {
        let object = json!({
            "source": self.source.shown().to_string(),
            "mountpoint": self.dir.to_string_lossy(),
            "backend": backend.name(),
            "read_only": read_only,
            "pid": process,
        });
        format!("{object}\n")
    }
}

/// The file system of the kernel that a mount is of.
#[derive(Clone, Copy)]
enum Backend {
    Fuse,
    Erofs,
}

impl Backend {
    fn name(self) -> &'static str {
        match self {
            Backend::Fuse => "fuse",
            Backend::Erofs => "erofs",
        }
    }
}

/// `barge mount`
pub(crate) fn run(args: &MountArgs) -> CommandResult {
    if args.options.contains(&MountOption::Remount) {
        if args.json {
            return Err(Failure::usage("--json describes a new mount, not remount"));
        }
        return remount::remount(&args.dir, &args.options, args.helper.sloppy);
    }
    let source = args.source.clone().require_signature(&args.verify_key)?;
    let source = source.require_cosign_signature(&args.cosign_key)?;
    let overlaid = args.overlay.is_some();
    let mut given = args.options.clone();
    given.extend(args.slow_ms.map(MountOption::SlowMs));
    #[cfg(feature = "otel")]
    given.extend(args.otlp.clone().map(MountOption::Otlp));
    let options = options::resolve(&given, &source, overlaid, args.helper.sloppy)?;
    if let Some(holder) = Holder::of_this_process()? {
        if let Some(descriptors) = holder.lazy() {
            return lazy::serve(args, &options, holder, descriptors);
        }
        return server::serve(args, options, &holder);
    }
    if !signals::is_background() {
        diagnose::check_mount_point(&args.dir)?;
        if mount_with_kernel(args, &options) {
            return match args.foreground {
                true => kernel::wait_for_unmount(args),
                false if args.json => {
                    let written =
                        stdout().write_all(args.report(Backend::Erofs, true, None).as_bytes());
                    finish_output(written, &ErrorReporter::default())
                }
                false => Ok(ExitCode::SUCCESS),
            };
        }
        if !args.foreground {
            return background::start(
                arguments::of_this_process(),
                arguments::absolute_variables(),
                args.json,
            );
        }
    }
    if let Some(code) = lazy::hold(args, &options)? {
        return Ok(code);
    }
    let client = match &options.source {
        Source::Tree(sources::Source::Remote(url)) => Some(client_owner::claim(url, &args.dir)),
        _ => None,
    };
    let mut mount = FuseMount {
        client,
        args,
        dir: &args.dir,
        options: options.mount,
        mount: None,
        listener: options.http.map(|addr| listen(&addr, None)).transpose()?,
        #[cfg(feature = "otel")]
        collectors: options.otlp.map_or_else(Vec::new, |otlp| otlp.addresses()),
        limit: shutdown_timeout(&options.source),
        can_be_taken_over: options.can_be_taken_over && args.record_trace.is_none(),
    };
    hold(&mut mount, options.sandbox)
}

/// Mounts an image with the kernel's EROFS if possible. Returns whether it is mounted.
fn mount_with_kernel(args: &MountArgs, options: &options::ResolvedOptions) -> bool {
    let Source::Tree(source) = &args.source else {
        return false;
    };
    match (source.image(), options.kernel_flags) {
        (Some(image), Some(flags)) if !args.requires_fuse() && args.verify_key.is_empty() => {
            let mounted = kernel::mount(&image, &args.dir, flags);
            if let Err(error) = &mounted {
                tracing::info!(
                    "{}: mounting with FUSE, because the kernel's EROFS failed: {error}",
                    args.source.shown()
                );
            }
            mounted.is_ok()
        }
        _ => false,
    }
}

/// A FUSE mount as its holder sees it.
struct FuseMount<'a> {
    args: &'a MountArgs,
    dir: &'a Path,
    options: MountOptions,
    mount: Option<Mount>,
    /// The socket of the status page.
    listener: Option<Listener>,
    /// Hosts and ports of OpenTelemetry collectors.
    #[cfg(feature = "otel")]
    collectors: Vec<(String, u16)>,
    /// Maximum time for the sync before the unmount.
    limit: Duration,
    /// Whether another process can continue the mount.
    can_be_taken_over: bool,
    /// The name of the mount as a client of its server.
    client: Option<MountedClient>,
}

impl HeldMount for FuseMount<'_> {
    fn mount(&mut self, read_only: bool) -> Result<(), Failure> {
        if read_only {
            // The kernel then sends no requests to change files.
            self.options.flags.extend(MountFlag::named("ro"));
        }
        let mount = Mount::new(self.dir, &self.options);
        let failed = |error| Failure::new(diagnose::mount_error(self.dir, "fuse", &error));
        self.mount = Some(mount.map_err(failed)?);
        Ok(())
    }

    fn descriptor(&mut self) -> io::Result<OwnedFd> {
        match &self.mount {
            Some(mount) => mount.open_device(),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn listener(&self) -> Option<&Listener> {
        self.listener.as_ref()
    }

    #[cfg(feature = "otel")]
    fn collectors(&self) -> Vec<(String, u16)> {
        self.collectors.clone()
    }

    fn can_be_taken_over(&self) -> bool {
        self.can_be_taken_over
    }

    fn client_owner(&self) -> Option<&ClientOwner> {
        self.client.as_ref().map(|client| &client.owner)
    }

    fn client_file(&self) -> Option<io::Result<OwnedFd>> {
        let file = self.client.as_ref()?.file.as_ref()?;
        Some(file.try_clone().map(OwnedFd::from))
    }

    fn abort(&self) {
        if let Some(mount) = &self.mount
            && let Err(error) = mount.abort()
        {
            tracing::error!("{}: {error}", self.dir.display());
        }
    }

    fn served(&self) {
        readahead::set(self.dir);
    }

    fn ready_text(&self) -> String {
        let read_only = self.options.is_read_only();
        self.args.ready_text(Backend::Fuse, read_only)
    }

    fn unmount(&mut self, ended: &AtomicBool) -> Result<(), Failure> {
        match &self.mount {
            Some(mount) => sync_and_unmount(mount, self.dir, self.limit, ended),
            None => Ok(()),
        }
    }
}

/// Returns the maximum time for the work at the end: that for replies of the server.
fn shutdown_timeout(source: &Source) -> Duration {
    match source.clone() {
        Source::Tree(sources::Source::Remote(mut url)) => url.timeouts().timeo,
        _ => Duration::MAX,
    }
}

/// Interval of checks whether a wait is over.
const CHECK_OVER: Duration = Duration::from_millis(50);

/// Runs `what` on a thread. Returns `None` if that takes longer than `time`, or soon after
/// `is_over` returns true; the thread then continues until this process exits.
fn with_timeout<T: Send + 'static>(
    time: Duration,
    is_over: impl Fn() -> bool,
    what: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(what()));
    let start = Instant::now();
    loop {
        let left = time.saturating_sub(start.elapsed());
        match receiver.recv_timeout(left.min(CHECK_OVER)) {
            Ok(result) => return Some(result),
            Err(RecvTimeoutError::Timeout) if !left.is_zero() && !is_over() => {}
            Err(_) => return None,
        }
    }
}

fn warn_not_synced(dir: &Path, why: &dyn std::fmt::Display) {
    tracing::warn!("{}: not synchronized: {why}", dir.display());
}

/// Unmounts after a sync of the file system. If the sync takes longer than `limit`, or the process
/// that serves has `ended`, requests of programs fail at once.
fn sync_and_unmount(
    mount: &Mount,
    dir: &Path,
    limit: Duration,
    ended: &AtomicBool,
) -> Result<(), Failure> {
    // A process of its own: a thread that waits in the kernel for replies could not be killed.
    let mut sync = command::child::external("sync");
    sync.arg("-f").arg(dir).stderr(Stdio::null());
    let has_ended = || ended.load(Ordering::Acquire);
    let synced = with_timeout(limit, has_ended, move || sync.status());
    match &synced {
        Some(Ok(status)) if status.success() => {}
        Some(Ok(status)) => warn_not_synced(dir, status),
        Some(Err(error)) => warn_not_synced(dir, error),
        None => warn_not_synced(dir, &"the server does not answer"),
    }
    let left = match synced {
        Some(_) => mount.unmount(),
        None => mount.force_unmount(),
    };
    left.map_err(|error| Failure::new(format!("{}: {error}", dir.display())))
}
