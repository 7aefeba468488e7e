//! `-o`: options of mount(8), and those of this file system.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use hostdir::WriteEvents;
use layers::OwnerOverride;
use layers::pagecache::{self, Mode};
use remote::{Retry, Timeouts, absolute_text};
use rustix::mount::MountFlags;
use sources::DiskCacheOptions;
use transports::Addr;
use transports::fusedev::{MountFlag, MountOptions, is_fstab_only};
use vfs::LocalUsers;

use crate::Failure;
use crate::arguments::absolute_addr;
use crate::cache::IMAGE_CACHE;
use crate::disk_cache::files::DiskCacheConfig;
use crate::serve::args::access::AdmittedUser;
use crate::serve::args::confinement::{Sandbox, Seccomp};
use crate::serve::args::virtiofs as kernel;
use crate::source::Source;

/// An option after `-o`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MountOption {
    /// A flag of every file system.
    Flag(MountFlag),
    AllowOther,
    /// The source that mount(8) shows.
    FsName(String),
    Cache(Cache),
    /// Memory for the page cache, bytes.
    CacheSize(usize),
    /// Directory of the disk cache for another server, or an image in an object store or registry.
    CacheDir(PathBuf),
    /// Maximum size of the disk cache, bytes.
    CacheDirSize(u64),
    Writeback,
    /// Whether the kernel may read and write files itself.
    Passthrough(bool),
    /// The writes by others of which the kernel is notified, if it is notified of changes at all.
    Notify(Option<WriteEvents>),
    /// Whether calls without a reply fail after the timeout.
    Soft(bool),
    /// Time for a reply.
    Timeo(Duration),
    /// Time to reconnect to a lost server.
    Retry(Retry),
    /// Owner of all files.
    Uid(u32),
    Gid(u32),
    /// Address of the status page.
    Http(Addr),
    /// A user of this host who may see it.
    HttpAdmit(AdmittedUser),
    /// Time from which on a request is slow, ms.
    SlowMs(u32),
    /// OpenTelemetry collector.
    #[cfg(feature = "otel")]
    Otlp(crate::otel::Url),
    /// Confinement of the process that serves.
    Sandbox(Sandbox),
    Seccomp(Seccomp),
    /// Change the flags of an existing mount.
    Remount,
    /// An option for fstab, or the default.
    Ignored,
    /// An unknown option.
    Unknown(String),
}

/// The caches in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    /// The kernel's alone, named as by virtiofsd.
    Kernel(kernel::Cache),
    /// The kernel's with write-back; for remote sources also the page cache, with pages around
    /// small random reads.
    Loose,
    /// The page cache, and the kernel's above it.
    Pages(Mode),
}

impl FromStr for Cache {
    type Err = String;

    fn from_str(text: &str) -> Result<Cache, String> {
        Ok(match text {
            // Names of Linux's 9P client.
            "none" => Cache::Kernel(kernel::Cache::Never),
            "readahead" => Cache::Pages(Mode::ReadAhead),
            "mmap" => Cache::Pages(Mode::Mmap),
            "loose" => Cache::Loose,
            other => Cache::Kernel(kernel::Cache::from_str(other, false)?),
        })
    }
}

impl Cache {
    /// Returns the default for a source: messages to a remote source are worth merging, and images
    /// do not change.
    fn of(source: &Source, overlaid: bool) -> Cache {
        match source {
            Source::Tree(sources::Source::Remote(_)) => Cache::Pages(Mode::Mmap),
            Source::Tree(tree) if tree.image().is_some() && !overlaid => {
                Cache::Kernel(kernel::Cache::Always)
            }
            _ => Cache::Kernel(kernel::Cache::Auto),
        }
    }
}

/// Parses the memory for the page cache, bytes.
fn cache_size(text: &str) -> Result<usize, String> {
    let bytes = remote::bytes(text).and_then(|bytes| usize::try_from(bytes).ok());
    bytes
        .filter(|&bytes| bytes >= 1 << 20)
        .ok_or_else(|| format!("expected a size of at least 1M, such as 64M, got '{text}'"))
}

/// Parses the time from which on a request is slow, ms.
fn slow_ms(text: &str) -> Result<u32, String> {
    let ms = text.parse().ok().filter(|&ms| ms > 0);
    ms.ok_or_else(|| format!("expected milliseconds, at least 1, got '{text}'"))
}

impl FromStr for MountOption {
    type Err = String;

    fn from_str(text: &str) -> Result<MountOption, String> {
        if let Some(flag) = MountFlag::named(text) {
            return Ok(MountOption::Flag(flag));
        }
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        Ok(match (name, value) {
            ("allow_other", "") => MountOption::AllowOther,
            ("fsname", value) if !value.is_empty() => MountOption::FsName(value.into()),
            ("cache", value) => MountOption::Cache(value.parse()?),
            ("cache_size", value) => MountOption::CacheSize(cache_size(value)?),
            ("cache_dir", dir) if !dir.is_empty() => MountOption::CacheDir(dir.into()),
            ("cache_dir_size", value) => MountOption::CacheDirSize(
                DiskCacheOptions::size(value).map_err(|what| format!("expected {what}"))?,
            ),
            ("writeback", "") => MountOption::Writeback,
            ("passthrough", "auto") => MountOption::Passthrough(true),
            ("passthrough", "off") => MountOption::Passthrough(false),
            ("passthrough", other) => {
                return Err(format!("expected auto or off, got '{other}'"));
            }
            ("notify", "auto") => MountOption::Notify(Some(WriteEvents::OnClose)),
            ("notify", "writes") => MountOption::Notify(Some(WriteEvents::Each)),
            ("notify", "off") => MountOption::Notify(None),
            ("notify", other) => {
                return Err(format!("expected auto, writes or off, got '{other}'"));
            }
            ("soft", "") => MountOption::Soft(true),
            ("hard", "") => MountOption::Soft(false),
            ("timeo", value) => MountOption::Timeo(
                Timeouts::timeo(value).map_err(|what| format!("expected {what}"))?,
            ),
            ("retry", value) => MountOption::Retry(
                Retry::seconds(value).map_err(|what| format!("expected {what}"))?,
            ),
            ("uid", value) => MountOption::Uid(remote::id("uid", value)?),
            ("http", value) => MountOption::Http(crate::status::parse_addr(value)?),
            ("http_admit", value) => MountOption::HttpAdmit(value.parse()?),
            ("slow_ms", value) => MountOption::SlowMs(slow_ms(value)?),
            #[cfg(feature = "otel")]
            ("otlp", value) => MountOption::Otlp(value.parse()?),
            ("gid", value) => MountOption::Gid(remote::id("gid", value)?),
            ("sandbox", value) => MountOption::Sandbox(Sandbox::from_str(value, false)?),
            ("seccomp", value) => MountOption::Seccomp(Seccomp::from_str(value, false)?),
            ("remount", "") => MountOption::Remount,
            ("default_permissions" | "defaults" | "relatime" | "norelatime", "")
            // Options of a FUSE mount that mount(8) passes with remount.
            | ("user_id" | "group_id" | "max_read" | "blksize", _) => MountOption::Ignored,
            (name, _) if is_fstab_only(name) => MountOption::Ignored,
            ("", _) => return Err("expected a mount option, got an empty one".into()),
            _ => MountOption::Unknown(text.into()),
        })
    }
}

impl MountOption {
    /// Returns `text`, an option, with absolute paths of this host: relative ones begin in the
    /// directory `dir`.
    pub(crate) fn absolute(text: &str, dir: &Path) -> Result<String, String> {
        Ok(match text.split_once('=') {
            Some((name @ "cache_dir", path)) => format!("{name}={}", absolute_text(path, dir)?),
            Some((name @ "http", addr)) => format!("{name}={}", absolute_addr(addr, dir)?),
            _ => text.to_owned(),
        })
    }
}

/// The result of all options.
pub(super) struct ResolvedOptions {
    pub(super) mount: MountOptions,
    pub(super) fuse: fuse::server::Options,
    /// Whether the kernel should read and write files itself.
    pub(super) passthrough: bool,
    /// The writes by others of which the kernel is notified, if it is notified of changes and
    /// caches longer.
    pub(super) notify: Option<WriteEvents>,
    /// Whether another process can continue the mount: all of its state is the kernel's, or that
    /// of the directory or image.
    pub(super) can_be_taken_over: bool,
    /// Page cache, if enabled.
    pub(super) page_cache: Option<pagecache::Options>,
    /// Disk cache for files of another server.
    pub(super) disk_cache: Option<DiskCacheConfig>,
    /// Directory of local files of images that are filled when they are read.
    pub(super) image_cache: DiskCacheOptions,
    /// Owner and group of all files.
    pub(super) owner: OwnerOverride,
    /// Source with the timeouts of the options.
    pub(super) source: Source,
    /// Address of the status page.
    pub(super) http: Option<Addr>,
    /// The users of this host who may see it.
    pub(super) http_admit: LocalUsers,
    /// Time from which on a request is slow.
    pub(super) slow: Option<Duration>,
    /// Export to an OpenTelemetry collector.
    #[cfg(feature = "otel")]
    pub(super) otlp: Option<crate::otel::Config>,
    /// Confinement of the process that serves, or `None` for the default.
    pub(super) sandbox: Option<Sandbox>,
    pub(super) seccomp: Option<Seccomp>,
    /// Flags for a mount without FUSE, or `None` if an option needs FUSE.
    pub(super) kernel_flags: Option<MountFlags>,
    /// Flags for such a mount from a local file that is filled, likewise.
    pub(super) lazy_flags: Option<MountFlags>,
}

/// Returns whether an image can be mounted without FUSE in spite of an option: directly, and from a
/// local file that is filled.
fn without_fuse(option: &MountOption) -> (bool, bool) {
    match option {
        // allow_other needs no FUSE: mounts of the kernel's EROFS are open to other users anyway.
        MountOption::Flag(_)
        | MountOption::AllowOther
        | MountOption::Sandbox(_)
        | MountOption::Seccomp(_)
        | MountOption::Ignored => (true, true),
        MountOption::CacheDir(_) | MountOption::CacheDirSize(_) => (false, true),
        _ => (false, false),
    }
}

/// Combines the options. The last of conflicting options takes precedence. `overlaid` is set if
/// changes are stored in an overlay. Unknown options are ignored if `sloppy`, and an error
/// otherwise.
pub(super) fn resolve(
    options: &[MountOption],
    source: &Source,
    overlaid: bool,
    sloppy: bool,
) -> Result<ResolvedOptions, Failure> {
    let mut mount = MountOptions {
        source: source.shown().to_string(),
        // As fusermount3(1) mounts: programs and devices of another host, or of an unverified
        // image, get no privileges.
        flags: ["nosuid", "nodev"]
            .into_iter()
            .filter_map(MountFlag::named)
            .collect(),
        ..MountOptions::default()
    };
    let mut fuse = fuse::server::Options {
        // Without it the kernel requests the capabilities of a file before each write.
        killpriv_v2: true,
        ..Default::default()
    };
    let mut pages = pagecache::Options::default();
    let mut cache = Cache::of(source, overlaid);
    // The kernel's EROFS is read-only.
    let mut kernel_flags = (!overlaid).then(|| mount.bits());
    let mut lazy_flags = kernel_flags;
    let mut owned = OwnerOverride::default();
    let mut from = source.clone();
    let (mut dir, mut size, mut http) = (None, None, None);
    let mut http_admit = Vec::new();
    let mut slow = None;
    #[cfg(feature = "otel")]
    let mut otlp = None;
    let mut passthrough = true;
    let mut notify = Some(WriteEvents::OnClose);
    let (mut sandbox, mut seccomp) = (None, None);
    for option in options {
        let (direct, lazy) = without_fuse(option);
        kernel_flags = kernel_flags.filter(|_| direct);
        lazy_flags = lazy_flags.filter(|_| lazy);
        if let MountOption::Flag(flag) = option {
            kernel_flags
                .iter_mut()
                .chain(&mut lazy_flags)
                .for_each(|flags| flag.apply(flags));
        }
        match option {
            MountOption::Flag(flag) => mount.flags.push(*flag),
            MountOption::AllowOther => mount.allow_other = true,
            MountOption::FsName(name) => mount.source.clone_from(name),
            MountOption::Cache(named) => cache = *named,
            MountOption::CacheSize(bytes) => pages.memory = *bytes,
            MountOption::CacheDir(named) => dir = Some(named.clone()),
            MountOption::CacheDirSize(bytes) => size = Some(*bytes),
            MountOption::Writeback => fuse.writeback = true,
            MountOption::Passthrough(wanted) => passthrough = *wanted,
            MountOption::Notify(wanted) => notify = *wanted,
            MountOption::Soft(soft) => {
                let url = remote(&mut from)?;
                url.timeouts().soft = *soft;
                if let (false, Some(retry)) = (soft, url.retry()) {
                    *retry = Retry::Forever;
                }
            }
            MountOption::Timeo(time) => remote(&mut from)?.timeouts().timeo = *time,
            MountOption::Retry(retry) => match remote(&mut from)?.retry() {
                Some(destination) => *destination = *retry,
                None => return Err(Failure::usage("retry= requires a 9P or NFS source")),
            },
            MountOption::Uid(uid) => owned.uid = Some(*uid),
            MountOption::Gid(gid) => owned.gid = Some(*gid),
            MountOption::Http(addr) => http = Some(addr.clone()),
            MountOption::HttpAdmit(user) => http_admit.push(*user),
            MountOption::SlowMs(ms) => slow = Some(Duration::from_millis((*ms).into())),
            #[cfg(feature = "otel")]
            MountOption::Otlp(url) => otlp = Some(url),
            MountOption::Sandbox(mode) => sandbox = Some(*mode),
            MountOption::Seccomp(action) => seccomp = Some(*action),
            // `remount` handles the former.
            MountOption::Remount | MountOption::Ignored => {}
            MountOption::Unknown(text) if sloppy => {
                tracing::warn!("unknown mount option {text} ignored")
            }
            MountOption::Unknown(text) => {
                return Err(Failure::usage(format!("unknown mount option '{text}'")));
            }
        }
    }
    let mut disk_cache = None;
    let mut image_cache = None;
    match (dir, &mut from) {
        (Some(dir), Source::Tree(sources::Source::Remote(_))) => {
            let size = size.unwrap_or(DiskCacheOptions::SIZE);
            disk_cache = Some(DiskCacheConfig { dir, size });
        }
        (Some(dir), Source::Tree(tree)) if tree.is_remote_image() => {
            tree.set_disk_cache(&DiskCacheOptions::new(dir, size));
        }
        (Some(dir), Source::Tree(tree)) if tree.image().is_some() => {
            image_cache = Some(DiskCacheOptions::new(dir, size));
        }
        (Some(_), _) => {
            return Err(Failure::usage(
                "cache_dir= requires a source on another server or an image",
            ));
        }
        (None, _) if size.is_some() => {
            return Err(Failure::usage("cache_dir_size= requires cache_dir="));
        }
        (None, _) => {}
    }
    if http.is_none() && !http_admit.is_empty() {
        return Err(Failure::usage("http_admit= requires http="));
    }
    let of_url = from.tree().and_then(sources::Source::disk_cache);
    let image_cache = image_cache.or_else(|| of_url.cloned());
    let image_cache =
        image_cache.unwrap_or_else(|| DiskCacheOptions::new(IMAGE_CACHE.into(), None));
    let pages = match cache {
        Cache::Kernel(mode) => {
            fuse.cache = mode.into();
            None
        }
        Cache::Loose => {
            fuse.cache = fuse::server::Cache::Always;
            fuse.writeback = true;
            pages.mode = Mode::Loose;
            matches!(source, Source::Tree(sources::Source::Remote(_))).then_some(pages)
        }
        Cache::Pages(mode) => {
            pages.mode = mode;
            Some(pages)
        }
    };
    // Images do not change and the kernel checks permissions: open requests are not needed.
    let image = matches!(source, Source::Tree(tree) if tree.image().is_some());
    fuse.without_open = image && fuse.cache == fuse::server::Cache::Always;
    // With passthrough, this process does not see reads and writes, and the kernel does not see
    // changes of times by writes through memory maps: attributes may be cached for moments only.
    // http= needs to count all requests.
    let directory = matches!(source, Source::Tree(sources::Source::HostDir(_)));
    let moments = matches!(
        fuse.cache,
        fuse::server::Cache::Never | fuse::server::Cache::Auto
    );
    passthrough &= moments && !fuse.writeback && http.is_none() && !overlaid;
    // So does otlp=; an environment that is common to all programs changes no mount.
    #[cfg(feature = "otel")]
    {
        passthrough &= otlp.is_none();
    }
    #[cfg(feature = "otel")]
    let otlp = {
        let mut config = crate::otel::Config::new(otlp);
        if let Some(config) = &mut config {
            config.load_certificates()?;
        }
        config
    };
    passthrough = match &mut from {
        // A server of this host may pass its files; the page cache does not store data of those.
        Source::Tree(sources::Source::Remote(url)) => {
            passthrough && !mount.is_read_only() && url.fd_passing().is_some()
        }
        _ => passthrough && directory && pages.is_none(),
    };
    // The next open revalidates what was written in any case.
    fuse.writers_bypass_cache = fuse.cache == fuse::server::Cache::Auto && !fuse.writeback;
    let changes = directory && pages.is_none() && !overlaid;
    // An image, here or on another server, has all state that the kernel does not have.
    let is_image = from.tree().is_some_and(sources::Source::is_image);
    let can_be_taken_over = (directory || is_image) && pages.is_none() && !overlaid;
    let notify = notify.filter(|_| changes && fuse.cache == fuse::server::Cache::Auto);
    Ok(ResolvedOptions {
        passthrough,
        notify,
        can_be_taken_over,
        mount,
        fuse,
        page_cache: pages,
        disk_cache,
        kernel_flags,
        lazy_flags,
        image_cache,
        owner: owned,
        source: from,
        http,
        http_admit: http_admit.into_iter().collect(),
        slow,
        #[cfg(feature = "otel")]
        otlp,
        sandbox,
        seccomp,
    })
}

/// Returns the URL of a remote source, for options about timeouts.
fn remote(source: &mut Source) -> Result<&mut remote::Url, Failure> {
    match source {
        Source::Tree(sources::Source::Remote(url)) => Ok(url),
        _ => Err(Failure::usage(
            "soft, hard, timeo= and retry= require a source on another server",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled_of(
        source: &str,
        text: &str,
        overlaid: bool,
        sloppy: bool,
    ) -> Result<ResolvedOptions, String> {
        let options: Result<Vec<_>, _> = text.split(',').map(str::parse).collect();
        let source: Source = source.parse()?;
        resolve(&options?, &source, overlaid, sloppy).map_err(String::from)
    }

    /// Returns whether the kernel should read and write files itself.
    fn passes(source: &str, text: &str, overlaid: bool) -> bool {
        let settled = settled_of(source, text, overlaid, false);
        settled.expect("good").passthrough
    }

    fn settled(text: &str) -> Result<ResolvedOptions, String> {
        settled_of("mem:", text, false, false)
    }

    #[test]
    fn what_is_not_known_is_passed_over_if_one_is_sloppy() {
        assert!(
            settled_of("mem:", "ro,sparkling=much", false, true)
                .expect("passed over")
                .mount
                .is_read_only()
        );
        assert!(settled_of("mem:", "cache=some", false, true).is_err());
    }

    #[test]
    fn a_server_is_waited_for_as_is_said() {
        let settled = |text: &str| {
            let settled = settled_of("9p+unix:/s?timeo=10", text, false, false);
            let mut settled = settled.expect("good");
            let url = super::remote(&mut settled.source);
            let url = url.map_err(|failure| failure.message).expect("remote");
            (*url.timeouts(), *url.retry().expect("it comes again"))
        };
        let (silence, retry) = settled("soft,retry=3");
        assert!(silence.soft && retry == Retry::For(Duration::from_secs(3)));
        assert_eq!(silence.timeo, Duration::from_secs(1));
        let (silence, retry) = settled("soft,timeo=20,hard");
        assert!(!silence.soft && retry == Retry::Forever);
        assert_eq!(silence.timeo, Duration::from_secs(2));
    }

    #[test]
    fn the_kernel_reads_and_writes_by_itself_where_nothing_is_kept_or_seen() {
        for text in [
            "defaults",
            "cache=never",
            "passthrough=off,passthrough=auto",
        ] {
            assert!(passes("dir:/", text, false), "{text}");
            assert!(!passes("dir:/", text, true), "{text}");
            assert!(!passes("mem:", text, false), "{text}");
        }
        for text in [
            "passthrough=off",
            "cache=always",
            "cache=metadata",
            "cache=mmap",
            "cache=loose",
            "writeback",
            "http=unix:/h",
        ] {
            assert!(!passes("dir:/", text, false), "{text}");
        }
    }

    #[test]
    fn a_server_of_this_host_is_asked_for_its_files_where_nothing_else_is_wanted() {
        let unix = "9p+unix:/s?aname=x";
        for text in [
            "defaults",
            "cache=mmap",
            "cache=readahead",
            "cache=none",
            "cache=auto",
        ] {
            assert!(passes(unix, text, false), "{text}");
            assert!(!passes(unix, text, true), "{text}");
        }
        for text in [
            "passthrough=off",
            "ro",
            "cache=loose",
            "cache=always",
            "writeback",
            "http=unix:/h",
        ] {
            assert!(!passes(unix, text, false), "{text}");
        }
        for elsewhere in [
            "9p://h/",
            "9p+vsock:1",
            "9p+vsock-uds:/s:1",
            "9p+virtio:/s",
            "nfs+unix:/s",
        ] {
            assert!(!passes(elsewhere, "defaults", false), "{elsewhere}");
        }
    }

    #[test]
    fn options_are_mounts_and_ours_and_fstabs() {
        let all =
            "ro,nosuid,allow_other,cache=always,fsname=home,_netdev,x-systemd.automount,user=me";
        let ResolvedOptions { mount, fuse, .. } = settled(all).expect("all known");
        assert!(mount.is_read_only() && mount.allow_other && mount.source == "home");
        assert_eq!(fuse.cache, fuse::server::Cache::Always);
        let plain = settled("defaults").expect("known");
        assert!(!plain.mount.is_read_only() && plain.mount.source == "mem:");
        assert!(!settled("ro,rw").expect("known").mount.is_read_only());
        let safe = MountFlags::NOSUID | MountFlags::NODEV;
        for (text, bits) in [
            ("defaults", safe),
            ("ro", safe | MountFlags::RDONLY),
            ("suid", MountFlags::NODEV),
            ("dev", MountFlags::NOSUID),
            ("suid,dev,noexec", MountFlags::NOEXEC),
            ("suid,nosuid", safe),
        ] {
            let settled = settled(text).expect("known");
            assert_eq!(settled.mount.bits(), bits, "{text}");
            assert_eq!(settled.kernel_flags, Some(bits), "{text}");
            assert_eq!(settled.lazy_flags, Some(bits), "{text}");
        }
        let image = |text: &str| {
            let settled = settled_of("https://host/image", text, false, false).expect("known");
            let (direct, lazy) = (settled.kernel_flags, settled.lazy_flags);
            let cache = settled.image_cache.dir().to_owned();
            (direct.is_some(), lazy.is_some(), cache)
        };
        assert_eq!(image("ro"), (true, true, IMAGE_CACHE.into()));
        assert_eq!(image("cache_dir=/x"), (false, true, "/x".into()));
        assert_eq!(image("cache=auto"), (false, false, IMAGE_CACHE.into()));
        let pages = |text: &str| settled(text).expect("known").page_cache;
        assert!(pages("cache=none").is_none() && pages("defaults").is_none());
        let cache = pages("cache=readahead,cache_size=3m").expect("a page cache");
        assert_eq!((cache.mode, cache.memory), (Mode::ReadAhead, 3 << 20));
        let loose = settled("cache=loose").expect("known");
        assert!(loose.fuse.writeback && loose.page_cache.is_none());
        let remote = |text: &str| settled_of("9p://server/", text, false, false).expect("known");
        let pages = remote("cache=loose").page_cache.expect("a page cache");
        assert_eq!(pages.mode, Mode::Loose);
        let disk_cache = remote("cache_dir=/x").disk_cache;
        let disk_cache = disk_cache.expect("a disk cache");
        assert_eq!(
            (disk_cache.dir, disk_cache.size),
            ("/x".into(), DiskCacheOptions::SIZE)
        );
        for bad in [
            "",
            "cache=",
            "cache=some",
            "cache_size=1k",
            "cache_size=M",
            "cache_dir=",
            "cache_dir=/x",
            "cache_dir=/x,cache_dir_size=much",
            "cache_dir_size=1G",
            "writeback=1",
            "rows",
            "fsname=",
            "timeo=0",
            "uid=me",
            "http=here",
            "http=unix:/h,http_admit=",
            "http_admit=0",
            "passthrough",
            "passthrough=on",
            "notify",
            "notify=on",
            "sandbox",
            "sandbox=chroot",
            "seccomp=allow",
            "soft",
        ] {
            assert!(settled(bad).is_err(), "{bad}");
        }
    }
}
