//! `barge cache`: the disk cache of images, from which they are mounted.

use std::fs::File;
use std::io::{IsTerminal, Write, stdout};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use indicatif::{BinaryBytes, ProgressBar};
use rustix::thread::CapabilitySet;
use sources::{CachedImage, DiskCacheOptions};
use sys::fanotify::Group;

use crate::files::{ErrorReporter, finish_output};
use crate::source::Source;
use crate::{CommandResult, Failure, confinement, diagnose};

#[derive(Args)]
pub(crate) struct CacheArgs {
    /// Directory of the cache
    #[arg(long, value_name = "DIR", default_value = IMAGE_CACHE, global = true)]
    dir: PathBuf,
    #[command(subcommand)]
    command: Cache,
}

/// The default directory of local files of images.
pub(crate) const IMAGE_CACHE: &str = "/var/cache/barge/images";

#[derive(Subcommand)]
enum Cache {
    /// List the images, the one that was used last first
    ///
    /// STORED is the space on the disk, IDLE the time since the last use.
    Ls,
    /// Fetch whole images, so that mounts of them need no network
    Warm {
        /// Images in object stores and registries, or with hashes
        #[arg(required = true)]
        image: Vec<Source>,
        /// Public key that must have signed the images (PEM, Ed25519); may be repeated
        #[arg(long, value_name = "FILE")]
        verify_key: Vec<PathBuf>,
        /// Public key that must have signed the images with cosign (PEM, ECDSA P-256 or Ed25519);
        /// may be repeated
        #[arg(long, value_name = "FILE")]
        cosign_key: Vec<PathBuf>,
    },
    /// Remove images that are not in use, least recently used first, down to a size
    Gc {
        /// Maximum size of the cache
        #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = DiskCacheOptions::size)]
        size: u64,
    },
    /// Verify stored data against its checksums
    ///
    /// Damaged data is fetched again when it is needed. The exit status is 1 if there is any.
    /// Images that were converted, or downloaded as a whole, have no checksums.
    Verify,
}

/// `barge cache`
pub(crate) fn run(args: &CacheArgs) -> CommandResult {
    let dir = &args.dir;
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", dir.display()));
    match &args.command {
        Cache::Ls => {
            confinement::enter_writer(false);
            let images = DiskCacheOptions::new(dir.clone(), None).images();
            list(&images.map_err(failed)?)
        }
        Cache::Warm {
            image,
            verify_key,
            cosign_key,
        } => {
            for source in image {
                let source = source.clone().require_signature(verify_key)?;
                let source = source.require_cosign_signature(cosign_key)?;
                let tree = source.tree().ok_or_else(|| {
                    Failure::usage(format!("expected an image, got {}", source.shown()))
                })?;
                warm(tree, dir)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Cache::Gc { size } => {
            confinement::enter_writer(false);
            let options = DiskCacheOptions::new(dir.clone(), Some(*size));
            let (before, after) = options.collect().map_err(failed)?;
            print(&format!(
                "removed {}, {} left\n",
                BinaryBytes(before.saturating_sub(after)),
                BinaryBytes(after)
            ))
        }
        Cache::Verify => {
            confinement::enter_writer(false);
            verify(dir)
        }
    }
}

fn list(images: &[CachedImage]) -> CommandResult {
    let mut text = format!(
        "{:<32} {:>10} {:>10} {:>8} {:>6} IMAGE\n",
        "NAME", "SIZE", "STORED", "IDLE", "IN USE"
    );
    for image in images {
        let idle = SystemTime::now().duration_since(image.used);
        let idle = idle.map_or(0, |idle| idle.as_secs());
        let idle = match idle {
            0..120 => format!("{idle}s"),
            120..7200 => format!("{}m", idle / 60),
            7200..172_800 => format!("{}h", idle / 3600),
            _ => format!("{}d", idle / 86400),
        };
        let (in_use, idle) = match image.in_use {
            true => ("yes", "-".to_owned()),
            false => ("no", idle),
        };
        text += &format!(
            "{:<32} {:>10} {:>10} {idle:>8} {in_use:>6} {}\n",
            image.name,
            BinaryBytes(image.len).to_string(),
            BinaryBytes(image.stored).to_string(),
            image.label.escape_debug()
        );
    }
    print(&text)
}

/// Fetches a whole image.
fn warm(source: &sources::Source, dir: &Path) -> Result<(), Failure> {
    let failed = |error| {
        Failure::new(format!(
            "{source}: {}",
            diagnose::open_error(source, &error)
        ))
    };
    let cache = DiskCacheOptions::new(dir.to_owned(), None);
    let image = source.open_lazy(&cache).map_err(failed)?;
    let mut image = image.ok_or_else(|| {
        Failure::new(format!(
            "{source}: expected an image in an object store or a registry, or one with hashes"
        ))
    })?;
    let path = dir.join(image.file_name());
    let file = File::options().read(true).write(true).open(&path);
    let file = file
        .and_then(quiet)
        .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    let progress = match stdout().is_terminal() {
        true => ProgressBar::new(image.size()),
        false => ProgressBar::hidden(),
    };
    let filled = image.fill_all(file, &mut |done| progress.set_position(done));
    progress.finish_and_clear();
    filled.map_err(failed)
}

/// Returns a descriptor of a cached file whose writes wait for no other process. Only root mounts
/// such files, and only from directories that no other user can change.
fn quiet(file: File) -> std::io::Result<File> {
    if !sys::caps::have_all(CapabilitySet::SYS_ADMIN) {
        return Ok(file);
    }
    let group = Group::new()?;
    match group.add(file.as_fd()) {
        // The file system has no such events.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(file),
        watched => {
            watched?;
            Ok(File::from(group.quiet(file.as_fd())?))
        }
    }
}

fn verify(dir: &Path) -> CommandResult {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", dir.display()));
    let cache = DiskCacheOptions::new(dir.to_owned(), None);
    let mut code = ExitCode::SUCCESS;
    for image in cache.images().map_err(failed)? {
        let verified = cache.verify(&image.name).map_err(failed)?;
        let shown = image.label.escape_debug();
        let result = match verified.has_checksums {
            true => format!(
                "{} segments match, {} are damaged",
                verified.sound, verified.damaged
            ),
            false => "not verified: a converted or whole image has no checksums".to_owned(),
        };
        print(&format!("{} {shown}: {result}\n", image.name))?;
        if verified.damaged > 0 {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

fn print(text: &str) -> CommandResult {
    finish_output(
        stdout().write_all(text.as_bytes()),
        &ErrorReporter::default(),
    )
}
