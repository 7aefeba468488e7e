//! `barge mount`: mounts a source on a directory of this host with FUSE, or an image with the
//! kernel's EROFS if possible.

mod kernel;
pub(crate) mod options;
mod passthrough;
mod readahead;
mod remount;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::available_parallelism;
use std::time::Duration;

use clap::Args;
use engine::{Engine, QueueThread, Tuning};
use fuse::server::{Server, Session};
use layers::PageCache;
use rustix::thread::CapabilitySet;
use transports::Addr;
use transports::fusedev::{Mount, MountFlag};
use vfs::{Call, Caller, Cx, Export};

use self::options::MountOption;
use self::passthrough::Passthrough;
use crate::listen::listen;
use crate::read_trace::TraceFile;
use crate::source::Source;
use crate::stack::Stack;
use crate::status::{ObservedSources, Observer, SourceCache, StatusServer};
use crate::{CommandResult, Failure, background, diagnose, service, signals, status};

/// Maximum time that a thread polls for the next request before it sleeps. A program sends its next
/// request after it was woken, and on idle processors of a virtual machine that and the wake-up of
/// the server take 65 µs: a shorter poll would find no request, and polling would stop.
const POLL: Duration = Duration::from_micros(200);

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
    /// gs://BUCKET/KEY, az://CONTAINER/KEY, https://HOST/PATH).
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
    /// uid=N and gid=N replace the owner and group of all files. soft lets calls fail that the
    /// server does not answer within timeo=TENTHS of a second (default: 600). retry=SECONDS limits
    /// the wait for a lost server (default: 60). hard waits without limit in both cases.
    ///
    /// cache_dir=DIR is a disk cache for files of another server or data of an image in an object
    /// store, of cache_dir_size=BYTES at most (default: 10G). http=ADDR serves the status page, as
    /// `barge serve --http` does.
    #[arg(short, long = "options", value_name = "OPTION", value_delimiter = ',')]
    options: Vec<MountOption>,
    /// Stay in the foreground and print 'ready' to standard output
    #[arg(short, long)]
    foreground: bool,
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
    /// With several keys, the image must be signed with one of them. All data is verified when it
    /// is read, which needs FUSE.
    #[arg(long, value_name = "FILE")]
    verify_key: Vec<PathBuf>,
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
        self.fuse || !self.verify_key.is_empty() || self.record_trace.is_some()
    }
}

/// `barge mount`
pub(crate) fn run(args: &MountArgs) -> CommandResult {
    if args.options.contains(&MountOption::Remount) {
        return remount::remount(&args.dir, &args.options, args.helper.sloppy);
    }
    let source = args.source.clone().require_signature(&args.verify_key)?;
    let overlaid = args.overlay.is_some();
    let mut options = options::resolve(&args.options, &source, overlaid, args.helper.sloppy)?;
    if !signals::is_background() {
        diagnose::check_mount_point(&args.dir)?;
    }
    if !signals::is_background() && mount_with_kernel(args, &options) {
        return match args.foreground {
            true => kernel::wait_for_unmount(args),
            false => Ok(ExitCode::SUCCESS),
        };
    }
    if !args.foreground && !signals::is_background() {
        return background::start();
    }
    sys::limits::raise_descriptors();
    let limit = shutdown_timeout(&options.source);
    options.passthrough &= args.record_trace.is_none();
    if options.passthrough && sys::caps::have_all(CapabilitySet::SYS_ADMIN) {
        request_fd_passing(&mut options.source);
    }
    let source = options.source.open(hostdir::Options::default())?;
    let pages = options.page_cache.map(PageCache::new).transpose();
    let pages = pages.map_err(Failure::new)?.map(Arc::new);
    let cache = match &pages {
        Some(pages) => SourceCache::Pages(pages.clone()),
        None => SourceCache::Image(source.clone()),
    };
    let trace = args.record_trace.as_deref().map(TraceFile::create);
    let trace = trace.transpose()?;
    let stack = Stack {
        disk_cache: match &options.source {
            Source::Tree(barge_client::Source::Remote(url)) => {
                options.disk_cache.as_ref().map(|cache| (cache, url))
            }
            _ => None,
        },
        read_trace: trace.clone(),
        overlay: (args.overlay.clone()).map(|dir| (dir, hostdir::Options::default())),
        page_cache: pages,
        owner: options.owner,
        ..Stack::default()
    };
    let fs = stack.wrap(source)?;
    // Only the kernel enforces `ro`, so that `remount,rw` can undo it.
    if fs.capabilities().read_only {
        // The kernel then sends no requests to change files.
        options.mount.flags.extend(MountFlag::named("ro"));
    }
    let server = Server::new(Arc::new(Export::new("", fs.clone())), options.fuse);
    let tuning = Tuning {
        operation_stats: options.http.is_some(),
        poll: POLL,
        ..Tuning::default()
    };
    let engine = Engine::new(tuning).map_err(Failure::new)?;
    match &options.http {
        Some(addr) => serve_status(&engine, addr, &options.source, cache)?,
        // At the end, no other reference to the source may exist.
        None => drop(cache),
    }
    let failed = |error| Failure::new(diagnose::mount_error(&args.dir, "fuse", &error));
    let mount = Mount::new(&args.dir, &options.mount).map_err(failed)?;
    let mut session = server.session();
    if options.passthrough {
        let files = mount.passthrough_files().map_err(Failure::new)?;
        session = session.with_passthrough(Arc::new(Passthrough(files)));
    }
    let channels =
        serve_requests(&engine, session, server.max_request(), &mount).map_err(|error| {
            // The first error is reported.
            let _ = mount.unmount();
            failed(error)
        })?;
    let (sender, receiver) = channel();
    let stop = sender.clone();
    // Fails only if the receiver is gone, when the mount has ended anyway.
    let signals = signals::on_signal(move || drop(stop.send(Event::Stop)), None)?;
    std::thread::spawn(move || {
        channels.into_iter().for_each(QueueThread::join);
        sender.send(Event::Unmounted)
    });
    readahead::set(&args.dir);
    background::report_ready()?;
    service::notify_ready("ready");
    if let Ok(Event::Stop) = receiver.recv() {
        sync_and_unmount(&mount, &args.dir, limit)?;
        // Either the session has ended or programs still have files open: they get errors.
        let _ = receiver.recv_timeout(service::CLOSE_TIMEOUT);
    }
    let pages = options.page_cache.is_some();
    let synced = with_timeout(limit, move || {
        // Writes through memory maps may arrive after the last close.
        let synced = match pages {
            true => fs.sync(&Cx::new(&Caller::ROOT, &Call::detached())),
            false => Ok(()),
        };
        engine.stop();
        engine.wait();
        // The source closes its session with the server and may wait for it.
        drop((fs, server, engine));
        synced
    });
    match synced {
        Some(Ok(())) => {}
        Some(Err(errno)) => warn_not_synced(&args.dir, &errno),
        None => warn_not_synced(&args.dir, &"the server does not answer"),
    }
    drop(signals);
    trace.map_or(Ok(()), |trace| trace.finish())?;
    Ok(ExitCode::SUCCESS)
}

/// Serves the status page of the mount at `addr`.
fn serve_status(
    engine: &Arc<Engine>,
    addr: &Addr,
    source: &Source,
    cache: SourceCache,
) -> Result<(), Failure> {
    let listener = listen(addr, None)?;
    let source = status::ObservedSource {
        name: String::new(),
        source: source.to_string(),
        cache,
    };
    let sources = Arc::new(ObservedSources::new(vec![source]));
    let observer = Observer::new(engine.clone(), sources, std::process::id());
    StatusServer::new(engine.clone(), Arc::new(observer)).serve(listener, &[])
}

/// Mounts an image with the kernel's EROFS if possible. Returns whether it is mounted.
fn mount_with_kernel(args: &MountArgs, options: &options::ResolvedOptions) -> bool {
    let Source::Tree(source) = &args.source else {
        return false;
    };
    match (source.image(), options.kernel_flags) {
        (Some(image), Some(flags)) if !args.requires_fuse() => {
            let mounted = kernel::mount(&image, &args.dir, flags);
            if let Err(error) = &mounted {
                tracing::info!(
                    "{}: mounting with FUSE, because the kernel's EROFS failed: {error}",
                    args.source
                );
            }
            mounted.is_ok()
        }
        _ => false,
    }
}

/// Requests open files from a server of this host, so that the kernel can read and write them
/// itself.
fn request_fd_passing(source: &mut Source) {
    if let Source::Tree(barge_client::Source::Remote(url)) = source
        && let Some(takes) = url.fd_passing()
    {
        *takes = true;
    }
}

/// Returns the maximum time for the work at the end: that for replies of the server.
fn shutdown_timeout(source: &Source) -> Duration {
    match source.clone() {
        Source::Tree(barge_client::Source::Remote(mut url)) => url.timeouts().timeo,
        _ => Duration::MAX,
    }
}

/// Runs `what` on a thread. Returns `None` if that takes longer than `time`; the thread then
/// continues until this process exits.
fn with_timeout<T: Send + 'static>(
    time: Duration,
    what: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(what()));
    receiver.recv_timeout(time).ok()
}

fn warn_not_synced(dir: &Path, why: &dyn std::fmt::Display) {
    tracing::warn!("{}: not synchronized: {why}", dir.display());
}

/// The end of a mount.
enum Event {
    /// A signal to stop.
    Stop,
    /// umount(8).
    Unmounted,
}

/// Serves requests with one thread per processor. The kernel assigns each request to an idle
/// thread.
fn serve_requests(
    engine: &Arc<Engine>,
    session: Session,
    longest: usize,
    mount: &Mount,
) -> std::io::Result<Vec<QueueThread>> {
    let queues = engine.queues(Arc::new(session));
    (0..available_parallelism()?.get())
        .map(|_| queues.start(Arc::new(mount.channel(longest)?), None))
        .collect()
}

/// Unmounts after a sync of the file system. If the sync takes longer than `limit`, requests of
/// programs fail at once.
fn sync_and_unmount(mount: &Mount, dir: &Path, limit: Duration) -> Result<(), Failure> {
    // A process of its own: a thread that waits in the kernel for replies of this process could not
    // be killed.
    let mut sync = Command::new("sync");
    sync.arg("-f").arg(dir).stderr(Stdio::null());
    let synced = with_timeout(limit, move || sync.status());
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
