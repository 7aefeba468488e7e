//! `barge mount`: a source on a directory of this host, by the kernel's FUSE; an image by its EROFS, if that can be.

mod kept;
mod kernel;
pub(crate) mod options;
mod passing;
mod remount;
mod window;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::available_parallelism;
use std::time::Duration;

use clap::Args;
use engine::{Driven, Engine, Tuning};
use fuse::server::{Server, Session};
use layers::{Owned, PageCache, stack};
use rustix::thread::CapabilitySet;
use transports::Addr;
use transports::fusedev::{Mount, MountFlag};
use vfs::{Call, Caller, Cx, Export};

use self::options::MountOption;
use self::passing::Passing;
use crate::seeing::{Seeing, SourceCache, Sources};
use crate::source::{self, Source};
use crate::touched::TouchedFile;
use crate::{Done, Failure, background, seeing, serve, service, signals, trouble};

/// How long a thread looks for the next request at most before it sleeps. A program asks again once it has been woken, and on a virtual
/// machine's idle processors that and the server's own wake-up are 65 µs: who looks for less finds nothing, and looks no more.
const POLL: Duration = Duration::from_micros(200);

#[derive(Args)]
#[allow(
    rustdoc::broken_intra_doc_links,
    reason = "what help has in brackets is no link"
)]
pub(crate) struct MountArgs {
    /// What to mount: PATH, dir:PATH, image:PATH, mem:, 9p://HOST[:PORT]/ANAME, 9p+unix:SOCKET, nfs://HOST[:PORT]/PATH, virtiofs:SOCKET, or an
    /// image in an object store: s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY, https://HOST/PATH
    source: Source,
    /// Where
    dir: PathBuf,
    /// Options, as mount(8) and mount.fuse3(8) have them: ro, allow_other, suid, dev (nosuid and
    /// nodev are the default), noexec, noatime, sync, fsname=NAME; remount with ro, rw and the
    /// like, to change those of a mount that is there; and cache=none|readahead|mmap|loose, what is
    /// kept and merged here, by the names of Linux's 9P client (mmap for a remote source);
    /// cache_size=BYTES, the memory for it (64M); cache=never|metadata|auto|always, what the kernel
    /// alone may keep (auto for others); writeback, it may write behind, where nobody else changes
    /// the source; passthrough=auto|off, whether it reads and writes files by itself, those of a
    /// local directory and those that a server by 9p+unix: hands over, as
    /// `barge serve --hand-over-files` does (auto, which is for root, from Linux 6.9 on, not with
    /// ro, http=, writeback or cache=metadata, always or loose, of a directory with cache=auto or
    /// never alone); uid=N, gid=N, whose everything is shown to be; soft, calls that the server
    /// does not answer within timeo=TENTHS of a second (600) fail; retry=SECONDS, for how long a
    /// server that is lost is waited for (60); hard, for both without end; cache_dir=DIR, where
    /// what is fetched of another server's files, or of an image in an object store, is kept for
    /// the next time, up to cache_dir_size=BYTES (10G); http=ADDR shows what is done, as
    /// `barge serve --http` does. Options for fstab alone are passed over
    #[arg(short, long = "options", value_name = "OPTION", value_delimiter = ',')]
    options: Vec<MountOption>,
    /// Stay in the foreground, and say 'ready' on standard output
    #[arg(short, long)]
    foreground: bool,
    /// Mount an image by FUSE even where the kernel could by itself; an option that only FUSE has does the same
    #[arg(long)]
    fuse: bool,
    /// Make a source writable that cannot be written, an image for one: what is changed is kept in this directory, as Linux's overlayfs
    /// keeps it (DIR/upper, DIR/work)
    #[arg(long, value_name = "DIR")]
    overlay: Option<PathBuf>,
    /// Mount an image only if it is signed with the key whose public half is in this file (PEM, Ed25519), and show nothing that is not what
    /// was signed, which takes FUSE; given several times, with one of them
    #[arg(long, value_name = "FILE")]
    verify_key: Vec<PathBuf>,
    /// Write down which parts of files are read of the source, and in which order, for barge pack --trace; an image is mounted by FUSE then
    #[arg(long, value_name = "FILE")]
    record_trace: Option<PathBuf>,
    /// What mount(8) tells its helpers besides
    #[command(flatten)]
    helper: HelperArgs,
}

/// See mount(8), "external helpers". The first and the last change nothing here; `-f` is no fake mount as it is for mount(8), which
/// does not run its helpers for that.
#[derive(Args)]
pub(crate) struct HelperArgs {
    /// Keep no record in /etc/mtab
    #[arg(short, hide = true)]
    n: bool,
    /// Pass over options that are not known
    #[arg(short = 's', hide = true)]
    sloppy: bool,
    /// The type, as mount(8) was told
    #[arg(short, hide = true, value_name = "TYPE")]
    t: Option<String>,
}

impl MountArgs {
    /// Whether what the kernel can by itself would not do.
    fn takes_fuse(&self) -> bool {
        self.fuse || !self.verify_key.is_empty() || self.record_trace.is_some()
    }
}

/// `barge mount`
pub(crate) fn run(args: &MountArgs) -> Done {
    if args.options.contains(&MountOption::Remount) {
        return remount::remount(&args.dir, &args.options, args.helper.sloppy);
    }
    let source = args.source.clone().signed(&args.verify_key)?;
    let overlaid = args.overlay.is_some();
    let mut options = options::settle(&args.options, &source, overlaid, args.helper.sloppy)?;
    if !background::is_background() {
        trouble::mount_point(&args.dir)?;
    }
    if !background::is_background() && by_kernel(args, &options) {
        return match args.foreground {
            true => kernel::stay(args),
            false => Ok(ExitCode::SUCCESS),
        };
    }
    if !args.foreground && !background::is_background() {
        return background::start();
    }
    sys::limits::raise_descriptors();
    let limit = patience(&options.from);
    options.passthrough &= args.record_trace.is_none();
    if options.passthrough && sys::caps::have(CapabilitySet::SYS_ADMIN) {
        take_files(&mut options.from);
    }
    let mut fs = options.from.open(hostdir::Options::default())?;
    let mut cache = SourceCache::Image(fs.clone());
    if let (Some(kept), Source::Tree(barge_client::Source::Remote(url))) =
        (&options.kept, &options.from)
    {
        fs = kept.over(fs, url)?;
    }
    let touched = args
        .record_trace
        .as_deref()
        .map(TouchedFile::create)
        .transpose()?;
    if let Some(touched) = &touched {
        fs = touched.over(fs);
    }
    if let Some(dir) = &args.overlay {
        fs = source::overlaid(fs, dir, hostdir::Options::default())?;
    }
    if let Some(pages) = options.pages {
        let pages = Arc::new(PageCache::new(pages).map_err(Failure::new)?);
        cache = SourceCache::Pages(pages.clone());
        fs = stack(fs, pages);
    }
    if options.owned != Owned::default() {
        fs = stack(fs, options.owned);
    }
    // `ro` alone is the kernel's to keep, so that it can be taken back (`remount,rw`).
    if fs.capabilities().read_only {
        // So the kernel does not ask.
        options.mount.flags.extend(MountFlag::named("ro"));
    }
    let server = Server::new(Arc::new(Export::new("", fs.clone())), options.fuse);
    let tuning = Tuning {
        counts: options.http.is_some(),
        poll: POLL,
        ..Tuning::default()
    };
    let engine = Engine::new(tuning).map_err(Failure::new)?;
    match &options.http {
        Some(addr) => show(&engine, addr, &options.from, cache)?,
        // Nothing else is to hold the source in the end.
        None => drop(cache),
    }
    let failed = |error| Failure::new(trouble::mounting(&args.dir, "fuse", &error));
    let mount = Mount::new(&args.dir, &options.mount).map_err(failed)?;
    let mut session = server.session();
    if options.passthrough {
        let files = mount.files().map_err(Failure::new)?;
        session = session.passing_through(Arc::new(Passing(files)));
    }
    let channels = drive(&engine, session, server.longest(), &mount).map_err(|error| {
        // The first error is the one to tell.
        let _ = mount.unmount();
        failed(error)
    })?;
    let (tell, told) = channel();
    let stop = tell.clone();
    // It fails when all is over anyway.
    let signals = signals::on_signal(move || drop(stop.send(Event::Stop)), None)?;
    std::thread::spawn(move || {
        channels.into_iter().for_each(Driven::wait);
        tell.send(Event::Unmounted)
    });
    window::widen(&args.dir);
    background::ready()?;
    service::tell_ready("ready");
    if let Ok(Event::Stop) = told.recv() {
        leave(&mount, &args.dir, limit)?;
        // Whether it is over or somebody still has something open: who does gets errors.
        let _ = told.recv_timeout(service::FAREWELL);
    }
    let pages = options.pages.is_some();
    let synced = within(limit, move || {
        // What is written through memory maps may come behind the last close.
        let synced = match pages {
            true => fs.sync(&Cx::new(&Caller::ROOT, &Call::detached())),
            false => Ok(()),
        };
        engine.stop();
        engine.wait();
        // The source takes leave of its server, which it may wait for.
        drop((fs, server, engine));
        synced
    });
    match synced {
        Some(Ok(())) => {}
        Some(Err(errno)) => not_synced(&args.dir, &errno),
        None => not_synced(&args.dir, &"the server does not answer"),
    }
    drop(signals);
    touched.map_or(Ok(()), |touched| touched.finish())?;
    Ok(ExitCode::SUCCESS)
}

/// Shows at `addr` what is done.
fn show(
    engine: &Arc<Engine>,
    addr: &Addr,
    source: &Source,
    cache: SourceCache,
) -> Result<(), Failure> {
    let listener = serve::listen(addr, None)?;
    let source = seeing::Source {
        name: String::new(),
        source: source.to_string(),
        cache,
    };
    let sources = Arc::new(Sources::new(vec![source]));
    Seeing::new(engine.clone(), sources).serve(listener, &[])
}

/// Whether the kernel could mount it by itself, and has.
fn by_kernel(args: &MountArgs, options: &options::Settled) -> bool {
    let Source::Tree(source) = &args.source else {
        return false;
    };
    match (source.image(), options.kernel_flags) {
        (Some(image), Some(flags)) if !args.takes_fuse() => {
            let mounted = kernel::mount(&image, &args.dir, flags);
            if let Err(error) = &mounted {
                tracing::info!(
                    "{}: the kernel's own EROFS cannot, FUSE may: {error}",
                    args.source
                );
            }
            mounted.is_ok()
        }
        _ => false,
    }
}

/// Has a server of this host asked for its open files, which the kernel can read and write by itself.
fn take_files(source: &mut Source) {
    if let Source::Tree(barge_client::Source::Remote(url)) = source
        && let Some(takes) = url.takes_files()
    {
        *takes = true;
    }
}

/// How long what is left to be done at the end may take: as long as the source waits for its server.
fn patience(source: &Source) -> Duration {
    match source.clone() {
        Source::Tree(barge_client::Source::Remote(mut url)) => url.silence().timeo,
        _ => Duration::MAX,
    }
}

/// Does `what`, unless that takes longer than `time`: then it goes on by itself, and ends with this process.
fn within<T: Send + 'static>(
    time: Duration,
    what: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(what()));
    told.recv_timeout(time).ok()
}

fn not_synced(dir: &Path, why: &dyn std::fmt::Display) {
    tracing::warn!("{}: not synchronized: {why}", dir.display());
}

/// What ends a mount.
enum Event {
    /// A signal.
    Stop,
    /// umount(8).
    Unmounted,
}

/// Serves requests by as many threads as there are processors: the kernel gives each to one that is free.
fn drive(
    engine: &Arc<Engine>,
    session: Session,
    longest: usize,
    mount: &Mount,
) -> std::io::Result<Vec<Driven>> {
    let queues = engine.queues(Arc::new(session));
    (0..available_parallelism()?.get())
        .map(|_| queues.drive(Arc::new(mount.channel(longest)?), None))
        .collect()
}

/// Takes the mount away, after what programs have written to it. If that takes longer than `limit`, whoever uses the mount gets
/// errors at once.
fn leave(mount: &Mount, dir: &Path, limit: Duration) -> Result<(), Failure> {
    // A process of its own: a thread that the kernel has wait for this one's answers could not even be killed.
    let mut sync = Command::new("sync");
    sync.arg("-f").arg(dir).stderr(Stdio::null());
    let synced = within(limit, move || sync.status());
    match &synced {
        Some(Ok(status)) if status.success() => {}
        Some(Ok(status)) => not_synced(dir, status),
        Some(Err(error)) => not_synced(dir, error),
        None => not_synced(dir, &"the server does not answer"),
    }
    let left = match synced {
        Some(_) => mount.unmount(),
        None => mount.give_up(),
    };
    left.map_err(|error| Failure::new(format!("{}: {error}", dir.display())))
}
