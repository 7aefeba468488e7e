//! The process that serves a FUSE mount.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::available_parallelism;
use std::time::Duration;

use engine::{Engine, QueueThread, Tuning};
use fuse::server::{Records, Resender, Server, Session};
use layers::PageCache;
use rustix::thread::CapabilitySet;
use sandbox::{Confinement, VisiblePath};
use transports::fusedev::{Channels, Notifier, PassthroughFiles};
use vfs::source_stats::RemoteCounters;
use vfs::{AttrMask, Call, Caller, ChangeStream, Cx, Export, FileSystem};

use super::memory;
use super::notify;
use super::options::ResolvedOptions;
use super::passthrough::Passthrough;
use super::takeover;
use super::{MountArgs, shutdown_timeout, warn_not_synced, with_timeout};
use crate::holder::Holder;
use crate::read_trace::TraceFile;
use crate::serve::args::confinement::{Sandbox, Seccomp};
use crate::serve::modcaps;
use crate::source::Source;
use crate::stack::Stack;
use crate::status::{
    ObservedSource, ObservedSources, Observer, Serving, StatusAdmission, StatusServer,
};
use crate::{CommandResult, Failure, child, signals};

/// Maximum time that a thread polls for the next request before it sleeps. A program sends its next
/// request after it was woken, and on idle processors of a virtual machine that and the wake-up of
/// the server take 65 µs: a shorter poll would find no request, and polling would stop.
const POLL: Duration = Duration::from_micros(200);

/// The end of a mount.
enum Event {
    /// The holder has unmounted after a signal to stop.
    Stop,
    /// All channels are closed.
    Unmounted,
}

/// Opens the source, and serves the mount of `holder`.
pub(super) fn serve(
    args: &MountArgs,
    mut options: ResolvedOptions,
    holder: &Arc<Holder>,
) -> CommandResult {
    sys::limits::limit_heaps();
    sys::limits::return_large_blocks();
    sys::limits::raise_descriptors();
    options.passthrough &= args.record_trace.is_none();
    options.source.check()?;
    let requests = memory::fit(&mut options, sys::limits::memory())?;
    let trace = args.record_trace.as_deref().map(TraceFile::create);
    let trace = trace.transpose()?;
    let watch = notify::watch(&options);
    confine(args, &options, holder)?;
    let privileged = sys::caps::have_all(CapabilitySet::SYS_ADMIN);
    if options.passthrough && privileged {
        request_fd_passing(&mut options.source);
    }
    if let Source::Tree(sources::Source::Remote(url)) = &mut options.source
        && let Some(owner) = url.client_owner()
    {
        *owner = holder.client_owner()?;
    }
    if let Source::Tree(sources::Source::Remote(url)) = &mut options.source
        && let remote::Url::Nfs(url) = &mut **url
    {
        record_hidden_names(&mut url.options, holder);
    }
    let limit = shutdown_timeout(&options.source);
    let records = takeover::records(args, &options, holder)?;
    let source = options.source.open(hostdir::Options {
        watch: watch.clone(),
        key: records.as_ref().map(Records::key),
        ..hostdir::Options::default()
    })?;
    let records = takeover::usable(records, &*source, holder)?;
    let pages = options.page_cache.map(PageCache::new).transpose();
    let pages = pages.map_err(Failure::new)?.map(Arc::new);
    let url = match &options.source {
        Source::Tree(sources::Source::Remote(url)) => Some(url),
        _ => None,
    };
    let files = match (&options.disk_cache, url) {
        (Some(cache), Some(url)) => Some(cache.open(&*source, url)?),
        _ => None,
    };
    let observed = options.http.is_some();
    #[cfg(feature = "otel")]
    let observed = observed || options.otlp.is_some();
    let remote = url.filter(|_| observed);
    let remote = remote.map(|_| Arc::<RemoteCounters>::default());
    // At the end, no other reference to the source may exist, unless its status is served.
    let source_figures = observed.then(|| ObservedSource {
        problem: None,
        name: String::new(),
        source: options.source.shown().to_string(),
        fs: source.clone(),
        pages: pages.clone(),
        files: files.clone(),
        remote: remote.clone(),
        limiter: None,
        quota: None,
    });
    let stack = Stack {
        remote,
        disk_cache: files,
        read_trace: trace.clone(),
        overlay: (args.overlay.clone()).map(|dir| (dir, hostdir::Options::default())),
        page_cache: pages,
        owner: options.owner,
        ..Stack::default()
    };
    let fs = stack.wrap(source)?;
    let server = Server::new(Arc::new(Export::new("", fs.clone())), options.fuse);
    let tuning = Tuning {
        operation_stats: observed,
        slow: options.slow,
        #[cfg(feature = "otel")]
        traces: options
            .otlp
            .as_ref()
            .and_then(|otlp| otlp.trace_options(options.slow.is_some())),
        poll: POLL,
        ..Tuning::default()
    };
    let engine = Engine::new(tuning).map_err(Failure::new)?;
    let observer = source_figures.map(|source| observer(&engine, holder, source));
    if let (Some(observer), true) = (&observer, options.http.is_some()) {
        let page = StatusServer::new(engine.clone(), observer.clone());
        let admission = StatusAdmission {
            names: Vec::new(),
            users: options.http_admit.clone(),
            socket_group: None,
        };
        page.serve(holder.listener()?, &admission)?;
    }
    #[cfg(feature = "otel")]
    let exporter = match (&observer, options.otlp.take()) {
        (Some(observer), Some(config)) => Some(start_exporter(config, observer, &engine, holder)?),
        _ => None,
    };
    if !holder.takes_over() {
        // Only the kernel enforces `ro`, so that `remount,rw` can undo it.
        holder.mount(fs.capabilities().read_only)?;
    }
    let mut session = server.session().with_client_threads(holder.clone());
    if options.passthrough {
        let files = PassthroughFiles::new(holder.descriptor().map_err(Failure::new)?);
        session = session.with_passthrough(Arc::new(Passthrough(files)));
    }
    let changes = watch.and_then(|_| watch_changes(&fs));
    if let (Some((device, _)), Some(writes)) = (&changes, options.notify) {
        session = session.with_notification(notify::coverage(*device, writes));
    }
    let is_recorded = records.is_some();
    if let Some(records) = records {
        let keeper = holder.keeper().map_err(Failure::new)?;
        let recorded = session.with_records(records, Resender::Client);
        session = recorded.with_keeper(Arc::new(keeper));
    }
    let session = Arc::new(session);
    if holder.takes_over() {
        takeover::continue_session(&session, holder)?;
    }
    if let Some((_, changes)) = changes {
        let notifier = match is_recorded {
            true => holder.notifier(),
            false => holder.descriptor().map(Notifier::new),
        };
        let taken_over = holder.takes_over();
        notifier
            .and_then(|notifier| notify::start(changes, &session, notifier, taken_over))
            .map_err(Failure::new)?;
    }
    let dir = args.dir.display().to_string();
    // The last reference ends the source's session and writes its disk cache, after the mount.
    let served = Arc::downgrade(&session);
    if holder.takes_over() {
        // Before the first request is read: that would be sent again, too.
        takeover::request_unanswered(holder)?;
    }
    let mut channels = Channels::new(dir);
    if let Some(bytes) = requests {
        channels = channels.with_memory(bytes);
    }
    let threads = serve_requests(
        &engine,
        session,
        server.max_request(),
        channels,
        holder,
        is_recorded,
    );
    let threads = threads.map_err(Failure::new)?;
    let (sender, receiver) = channel();
    let stop = sender.clone();
    // Fails only if the receiver is gone, when the mount has ended anyway.
    let stop = move || drop(stop.send(Event::Stop));
    let held = holder.clone();
    holder.on_order(stop, move || {
        takeover::hand_over(served.upgrade().as_deref(), &held);
    })?;
    std::thread::spawn(move || {
        threads.into_iter().for_each(QueueThread::join);
        sender.send(Event::Unmounted)
    });
    if let Some(observer) = observer {
        observer.set_started(|| Serving::Accepting);
    }
    holder.report_ready()?;
    if let Ok(Event::Stop) = receiver.recv() {
        // Either the session has ended or programs still have files open: they get errors.
        let _ = receiver.recv_timeout(signals::CLOSE_TIMEOUT);
    }
    let pages = options.page_cache.is_some();
    let finish = move || {
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
    };
    let synced = with_timeout(limit, || false, finish);
    match synced {
        Some(Ok(())) => {}
        Some(Err(errno)) => warn_not_synced(&args.dir, &errno),
        None => warn_not_synced(&args.dir, &"the server does not answer"),
    }
    #[cfg(feature = "otel")]
    if let Some(exporter) = exporter {
        exporter.finish();
    }
    trace.map_or(Ok(()), |trace| trace.finish())?;
    Ok(ExitCode::SUCCESS)
}

/// Makes an NFS mount write the hidden names of removed files to the file of its name, if there is
/// one.
fn record_hidden_names(options: &mut remote::nfs::Options, holder: &Holder) {
    let Some(owner) = &options.client_owner else {
        return;
    };
    let log = holder.client_file().map(|file| {
        // After a newline.
        let start = owner.as_str().len() as u64 + 1;
        remote::nfs::HiddenLog::new(file.into(), start)
    });
    options.hidden_log = log.and_then(std::io::Result::ok);
}

/// Starts the export to an OpenTelemetry collector, to which `holder` connects.
#[cfg(feature = "otel")]
fn start_exporter(
    config: crate::otel::Config,
    observer: &Arc<Observer>,
    engine: &Arc<Engine>,
    holder: &Arc<Holder>,
) -> Result<crate::otel::Exporter, Failure> {
    let exported = crate::otel::Exported {
        figures: observer.clone(),
        own: true,
        traces: engine.traces(),
        process: holder.id(),
    };
    let holder = holder.clone();
    let connect = move |host: &str, port| holder.connect_collector(host, port);
    let exporter = crate::otel::Exporter::start(config, exported, Box::new(connect))?;
    observer.set_spans(exporter.counts());
    Ok(exporter)
}

/// Returns the changes of the tree, and the device of the root, of which all are reported.
fn watch_changes(fs: &Arc<dyn FileSystem>) -> Option<(u64, Box<dyn ChangeStream>)> {
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let root = fs
        .root(&cx)
        .and_then(|root| root.attr(&cx, AttrMask::BASIC));
    let watched = root.and_then(|root| Ok((root.device, fs.watch(&cx)?)));
    match watched {
        Ok((device, changes)) => changes.covers(device).then_some((device, changes)),
        Err(errno) => {
            tracing::info!("no notification of changes: {errno}");
            None
        }
    }
}

/// Confines this process before it starts a thread.
fn confine(
    args: &MountArgs,
    options: &ResolvedOptions,
    holder: &Arc<Holder>,
) -> Result<(), Failure> {
    if options.sandbox == Some(Sandbox::None) {
        return child::end_with_parent();
    }
    let tree = options.source.tree();
    let network = options.source.connects();
    let directory = matches!(tree, Some(sources::Source::HostDir(_)));
    let directory = directory && tree.is_none_or(|tree| tree.image().is_none());
    let paths = options.source.host_paths().into_iter();
    let sources = paths.map(|path| VisiblePath {
        path,
        writable: directory,
    });
    let overlay = args.overlay.clone().map(VisiblePath::writable);
    let mut kept = modcaps::WITH_HANDLES;
    // Attributes of overlays are in trusted.*.
    let privileged = options.passthrough || args.overlay.is_some();
    kept.set(CapabilitySet::SYS_ADMIN, privileged);
    // Ports below 1024 of clients of other servers.
    kept.set(CapabilitySet::NET_BIND_SERVICE, network);
    kept &= sys::caps::effective();
    let remote_image = tree.is_some_and(sources::Source::is_remote_image);
    if !network {
        holder.query_users();
    }
    if options.http.is_some() {
        sys::diag::keep_sockets();
    }
    child::confine(&Confinement {
        paths: sources.chain(overlay).collect(),
        objects: Vec::new(),
        namespaces: holder.prepared_namespaces(),
        landlock: true,
        kernel_handles: network || kept.contains(CapabilitySet::DAC_READ_SEARCH),
        capabilities: kept,
        network,
        // Images on other servers may be cached in a directory.
        directories: directory
            || remote_image
            || options.disk_cache.is_some()
            || args.overlay.is_some(),
        changes: false,
        seccomp: Seccomp::action(options.seccomp, network),
    })
}

/// Returns the figures of the mount of `source`.
fn observer(engine: &Arc<Engine>, holder: &Holder, source: ObservedSource) -> Arc<Observer> {
    let sources = Arc::new(ObservedSources::new(vec![source]));
    Arc::new(Observer::new(engine.clone(), sources, holder.id()))
}

/// Requests open files from a server of this host, so that the kernel can read and write them
/// itself.
fn request_fd_passing(source: &mut Source) {
    if let Source::Tree(sources::Source::Remote(url)) = source
        && let Some(takes) = url.fd_passing()
    {
        *takes = true;
    }
}

/// Serves requests with one thread per processor. The kernel assigns each request to an idle
/// thread.
fn serve_requests(
    engine: &Arc<Engine>,
    session: Arc<Session>,
    longest: usize,
    mut channels: Channels,
    holder: &Holder,
    is_recorded: bool,
) -> std::io::Result<Vec<QueueThread>> {
    if is_recorded {
        let session = session.clone();
        channels = channels.with_sent(Arc::new(move |request: &[u8]| session.sent(request)));
    }
    let queues = engine.queues(session);
    (0..available_parallelism()?.get())
        .map(|number| {
            let device = match is_recorded {
                true => holder.serving_channel(number)?,
                false => holder.descriptor()?,
            };
            let channel = channels.open(device, longest)?;
            queues.start(Arc::new(channel), None)
        })
        .collect()
}
