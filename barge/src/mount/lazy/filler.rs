//! The process that fills the file of an image.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::thread::CapabilitySet;
use sandbox::{Confinement, VisiblePath};
use sources::{AllowedReads, LazyImage};
use sys::fanotify::{Event, Group};

use super::super::MountArgs;
use super::super::options::ResolvedOptions;
use super::holder::wait_for_unmount;
use super::{Fill, Filled, Notice, Reply, Request, answer};
use crate::child::message::{self, unexpected};
use crate::holder::{Holder, LazyDescriptors, LazyFile, Stop};
use crate::serve::args::confinement::{Sandbox, Seccomp};
use crate::{CommandResult, Failure, background, child, signals};

/// Number of ranges that are filled at once: further readers wait for one of them.
const THREADS: usize = 16;

/// Number of descriptors that a holder may have open.
const MAX_DESCRIPTORS: u64 = 1 << 20;

/// Opens the image, and fills its file when `holder` passes on events.
pub(crate) fn serve(
    args: &MountArgs,
    options: &ResolvedOptions,
    holder: Arc<Holder>,
    descriptors: LazyDescriptors,
) -> CommandResult {
    let group = child::inherited(descriptors.group)?;
    let unmounts = child::inherited(descriptors.unmounts)?;
    let fills = Arc::new(child::inherited(descriptors.fills)?);
    let inherit = |file: LazyFile| -> Result<MountedFile, Failure> {
        Ok(MountedFile {
            name: file.name,
            quiet: child::inherited(file.quiet)?,
            user: child::inherited(file.user)?,
        })
    };
    let mounted = descriptors.file.map(inherit).transpose()?;
    sys::limits::raise_descriptors();
    // The holder decides what a signal does.
    signals::ignore().map_err(Failure::new)?;
    confine(options, &holder)?;
    let filler = Arc::new(Filler {
        image: OnceLock::new(),
        group: group.into(),
        holder,
        complete: AtomicBool::new(false),
        reads: Arc::default(),
        receiving: Mutex::default(),
    });
    let threads: io::Result<Vec<_>> = (0..THREADS)
        .map(|_| {
            let (filler, fills) = (filler.clone(), fills.clone());
            spawn(move || filler.serve(&fills))
        })
        .collect();
    let threads = threads.map_err(Failure::new)?;
    let (started, dir) = (filler.clone(), args.dir.display().to_string());
    // The holder may end at any time; this process then answers in its place.
    let waiting = spawn(move || started.wait_for_end(threads, &unmounts, &dir));
    let waiting = waiting.map_err(Failure::new)?;
    match filler.start(options, mounted) {
        Err(error) => {
            let _ = filler.image.set(None);
            tracing::debug!("{}: {error}", args.source.shown());
            if filler.ask(&Request::Decline).is_ok() {
                return Ok(ExitCode::FAILURE);
            }
            // The holder has ended.
        }
        Ok(()) => {
            if signals::is_background() {
                background::detach_child().map_err(Failure::new)?;
            }
            filler.read_ahead();
        }
    }
    // A panic is reported by its thread.
    let _ = waiting.join();
    Ok(ExitCode::SUCCESS)
}

/// Confines this process before it starts a thread.
fn confine(options: &ResolvedOptions, holder: &Holder) -> Result<(), Failure> {
    if options.sandbox == Some(Sandbox::None) {
        return Ok(());
    }
    let network = options.source.connects();
    let read = options.source.host_paths().into_iter();
    let read = read.map(|path| VisiblePath {
        path,
        writable: false,
    });
    let cache = VisiblePath::writable(options.image_cache.dir().to_owned());
    // The image may be a file of another user.
    let kept = CapabilitySet::DAC_READ_SEARCH & sys::caps::effective();
    child::confine_survivor(&Confinement {
        paths: read.chain([cache]).collect(),
        objects: Vec::new(),
        namespaces: holder.prepared_namespaces(),
        landlock: true,
        kernel_handles: network,
        capabilities: kept,
        network,
        directories: true,
        changes: false,
        seccomp: Seccomp::action(options.seccomp, network),
    })
}

fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name("barge-fill".into()).spawn(run)
}

/// The file of an image that is mounted already.
struct MountedFile {
    name: String,
    quiet: OwnedFd,
    user: OwnedFd,
}

/// An image whose file is filled.
struct Filler {
    /// `None` if the image cannot be opened; its readers get errors then.
    image: OnceLock<Option<Arc<LazyImage>>>,
    group: Group,
    holder: Arc<Holder>,
    /// Whether the holder knows that the file has the whole image.
    complete: AtomicBool,
    /// Ranges that the kernel may be reading.
    reads: Arc<AllowedReads>,
    /// Held while a notice is received and its reads are recorded, so that this is done in order.
    receiving: Mutex<()>,
}

impl Filler {
    /// Opens the image, and asks the holder to mount it, unless the file `mounted` is mounted
    /// already.
    fn start(&self, options: &ResolvedOptions, mounted: Option<MountedFile>) -> io::Result<()> {
        let tree = options.source.tree();
        let opened = tree.map(|tree| tree.open_lazy(&options.image_cache));
        let mut image = opened.transpose()?.flatten().ok_or_else(|| {
            io::Error::other(
                "expected an image with hashes, or on a server, with its metadata at the end",
            )
        })?;
        let is_mounted = mounted.is_some();
        let (quiet, user) = match mounted {
            Some(file) if file.name == image.file_name() => (file.quiet, file.user),
            Some(_) => return Err(io::Error::other("expected the image that is mounted")),
            None => {
                let (name, followed) = (image.file_name(), image.may_exceed_cache());
                if !followed {
                    self.reads.give_up();
                }
                let quiet = self.ask_for_descriptor(&Request::Open { name, followed })?;
                (quiet, self.ask_for_descriptor(&Request::User)?)
            }
        };
        image.prepare(quiet.into(), user.into(), self.reads.clone())?;
        let _ = self.image.set(Some(Arc::new(image)));
        if !is_mounted {
            self.ask(&Request::Mount)?;
        }
        // Without a holder, this process answers readers alone.
        let _ = self.ask(&Request::Ready);
        Ok(())
    }

    fn ask(&self, request: &Request) -> io::Result<(Reply, Option<OwnedFd>)> {
        message::ask(self.holder.channel(), request)
    }

    fn ask_for_descriptor(&self, request: &Request) -> io::Result<OwnedFd> {
        match self.ask(request)? {
            (Reply::Descriptor, Some(descriptor)) => Ok(descriptor),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Fills ranges that the holder passes on through `fills`, until the holder ends.
    fn serve(&self, fills: &OwnedFd) {
        loop {
            let fill = match self.receive(fills) {
                Ok(Some(fill)) => fill,
                Ok(None) => continue,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
                Err(_) => return,
            };
            let Fill { event, number, .. } = fill;
            let done = self.fill(fill.start, fill.end);
            if !done {
                self.reads.end(number);
            }
            if message::send(fills.as_fd(), &Filled { event, done }, None).is_err() {
                // The holder has ended. Fails if the reader was killed.
                let _ = self.group.answer(event, answer(done));
            }
            self.report_complete();
        }
    }

    /// Receives a notice and records its reads. Returns the range to fill, if it has one.
    fn receive(&self, fills: &OwnedFd) -> io::Result<Option<Fill>> {
        let _receiving = self.receiving.lock();
        let (notice, _) = message::receive::<Notice>(fills.as_fd())?;
        match notice {
            Notice::Reads(Some(reads)) => {
                for (number, start, end) in reads {
                    self.reads.begin(number, start..end);
                }
                self.reads.observe();
            }
            Notice::Reads(None) | Notice::Unknown => self.reads.give_up(),
            Notice::Fill(fill, over) => {
                over.into_iter().for_each(|number| self.reads.end(number));
                self.reads.begin(fill.number, fill.start..fill.end);
                return Ok(Some(fill));
            }
            Notice::Over(over) => over.into_iter().for_each(|number| self.reads.end(number)),
        }
        Ok(None)
    }

    /// Fills a range, and returns whether the file has it.
    fn fill(&self, start: u64, end: u64) -> bool {
        let Some(image) = self.image.wait() else {
            return false;
        };
        let filled = image.fill(start..end);
        if let Err(error) = &filled {
            tracing::debug!("bytes {start} to {end} of the image: {error}");
        }
        filled.is_ok()
    }

    /// Fetches what the image lists as used first.
    fn read_ahead(&self) {
        let Some(image) = self.image.wait() else {
            return;
        };
        if let Some(thread) = image.read_ahead() {
            // A panic is reported by its thread.
            let _ = thread.join();
        }
        image.verify_present();
        self.report_complete();
    }

    /// Tells the holder once that the file has the whole image.
    fn report_complete(&self) {
        let is_complete = || matches!(self.image.get(), Some(Some(image)) if image.keep_complete());
        if !self.complete.load(Ordering::Relaxed)
            && is_complete()
            && !self.complete.swap(true, Ordering::Relaxed)
        {
            // Without a holder, events go on.
            let _ = self.ask(&Request::Complete);
        }
    }

    /// Ends the process when the holder says that the image is unmounted. If the holder ends,
    /// answers events in its place, until then.
    fn wait_for_end(self: &Arc<Self>, threads: Vec<JoinHandle<()>>, unmounts: &OwnedFd, dir: &str) {
        loop {
            match message::receive::<Stop>(self.holder.channel()) {
                Ok(_) => std::process::exit(0),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Err(_) => break,
            }
        }
        // No process tells any more which reads are over.
        self.reads.give_up();
        tracing::error!(
            "{dir}: the process that holds the mount has ended; this one answers readers alone"
        );
        // Events are named by numbers of the holder's descriptors, which those that are read here
        // may repeat. So those of the holder are answered first.
        for thread in threads {
            let _ = thread.join();
        }
        for number in 0..sys::limits::raise_descriptors().min(MAX_DESCRIPTORS) {
            // Fails unless the holder has read an event and not passed it on.
            let _ = self.group.answer(number as i32, answer(false));
        }
        for _ in 0..THREADS {
            let filler = self.clone();
            if let Err(error) = spawn(move || filler.serve_alone()) {
                tracing::error!("{dir}: {error}");
            }
        }
        wait_for_unmount(unmounts.as_fd());
        std::process::exit(0);
    }

    /// Answers events, until the process ends.
    fn serve_alone(&self) {
        loop {
            let read = self.group.read(&mut |event| {
                let Event::Waits(read) = event else {
                    return;
                };
                let done = self.fill(read.range.start, read.range.end);
                // Fails if the reader was killed.
                let _ = self.group.answer(read.file.as_raw_fd(), answer(done));
            });
            if let Err(error) = read {
                tracing::error!("events of the image's file: {error}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}
