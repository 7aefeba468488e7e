//! `barge mount`: a source on a directory of this host, by the kernel's FUSE; an image by its EROFS, if that can be.

mod kernel;
pub(crate) mod options;
mod window;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::available_parallelism;
use std::time::Duration;

use clap::Args;
use engine::{Driven, Engine, Tuning};
use fuse::server::Server;
use layers::{PageCache, ReadOnly, stack};
use rustix::fs::{Mode, OFlags};
use transports::fusedev::Mount;
use vfs::{Call, Caller, Cx, Export};

use self::options::MountOption;
use crate::source::Source;
use crate::{Done, Failure, background, service, signals};

#[derive(Args)]
pub(crate) struct MountArgs {
    /// What to mount: PATH, dir:PATH, image:PATH, mem:, 9p://HOST[:PORT]/ANAME, 9p+unix:SOCKET, nfs://HOST[:PORT]/PATH or virtiofs:SOCKET
    source: Source,
    /// Where
    dir: PathBuf,
    /// Options, as mount(8) and mount.fuse3(8) have them: ro, allow_other, nosuid, nodev, noexec, noatime, sync, fsname=NAME; and
    /// cache=none|readahead|mmap|loose, what is kept and merged here, by the names of Linux's 9P client (mmap for a remote source);
    /// cache_size=BYTES, the memory for it (64M); cache=never|metadata|auto|always, what the kernel alone may keep (auto for others);
    /// writeback, it may write behind, where nobody else changes the source. What is for fstab alone is passed over
    #[arg(short, long = "options", value_name = "OPTION", value_delimiter = ',')]
    options: Vec<MountOption>,
    /// Stay in the foreground, and say 'ready' on standard output
    #[arg(short, long)]
    foreground: bool,
    /// Mount an image by FUSE even where the kernel could by itself; an option that only FUSE has does the same
    #[arg(long)]
    fuse: bool,
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

/// What is still open when it is told to stop has so long to be closed.
const FAREWELL: Duration = Duration::from_secs(2);

/// `barge mount`
pub(crate) fn run(args: &MountArgs) -> Done {
    let options = options::settle(&args.options, &args.source, args.helper.sloppy)?;
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
    let mut fs = args.source.open(hostdir::Options::default())?;
    if let Some(pages) = options.pages {
        fs = stack(fs, PageCache::new(pages).map_err(Failure::new)?);
    }
    if options.read_only {
        fs = stack(fs, ReadOnly);
    }
    let server = Server::new(Arc::new(Export::new("", fs.clone())), options.fuse);
    let engine = Engine::new(Tuning::default()).map_err(Failure::new)?;
    let failed = |error| Failure::new(format!("{}: {error}", args.dir.display()));
    let mount = Mount::new(&args.dir, &options.mount).map_err(failed)?;
    let channels = drive(&engine, &server, &mount).map_err(|error| {
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
    service::tell_ready();
    if let Ok(Event::Stop) = told.recv() {
        leave(&mount, &args.dir)?;
        // Whether it is over or somebody still has something open: who does gets errors.
        let _ = told.recv_timeout(FAREWELL);
    }
    drop(signals);
    if options.pages.is_some()
        && let Err(errno) = fs.sync(&Cx::new(&Caller::ROOT, &Call::detached()))
    {
        // What is written through memory maps may come behind the last close.
        tracing::warn!("{}: not synchronized: {errno}", args.dir.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the kernel could mount it by itself, and has.
fn by_kernel(args: &MountArgs, options: &options::Settled) -> bool {
    let Source::Tree(source) = &args.source else {
        return false;
    };
    match (source.image(), options.kernel_flags) {
        (Some(image), Some(flags)) if !args.fuse => {
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

/// What ends a mount.
enum Event {
    /// A signal.
    Stop,
    /// umount(8).
    Unmounted,
}

/// Serves requests by as many threads as there are processors: the kernel gives each to one that is free.
fn drive(engine: &Arc<Engine>, server: &Server, mount: &Mount) -> std::io::Result<Vec<Driven>> {
    let queues = engine.queues(Arc::new(server.session()));
    (0..available_parallelism()?.get())
        .map(|_| queues.drive(Arc::new(mount.channel(server.longest())?), None))
        .collect()
}

/// Takes the mount away, after what programs have written to it.
fn leave(mount: &Mount, dir: &std::path::Path) -> Result<(), Failure> {
    let synced = rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .and_then(rustix::fs::syncfs);
    if let Err(error) = synced {
        tracing::warn!("{}: not synchronized: {error}", dir.display());
    }
    mount
        .unmount()
        .map_err(|error| Failure::new(format!("{}: {error}", dir.display())))
}
