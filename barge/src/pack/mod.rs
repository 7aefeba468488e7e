//! `barge pack` and `barge check`: the command-line side; the crate `pack` (`images/pack`) builds
//! images.

mod args;
mod check;
#[cfg_attr(windows, path = "stdin_windows.rs")]
mod stdin;
#[cfg_attr(not(target_os = "linux"), path = "no_stores.rs")]
mod stores;

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use command::stderr::print_line;
use pack::input::OciLayout;
use pack::oci::{Algorithm, Config, Digest, Layout, Platform};
use pack::{Kind, Output, Plan, SecretKey, Trace, TreeLimit, input};
use serde_json::{Value, json};
use sources::Source;
use sources::Tree;

pub(crate) use args::{CheckArgs, PackArgs};
pub(crate) use check::check;

use self::args::Format;
use crate::diagnose::open_error;
use crate::files::{ErrorReporter, Progress, finish_output};
use crate::{CommandResult, Failure, confinement};

/// Writes an image of a tree.
pub(crate) fn pack(args: &PackArgs) -> CommandResult {
    let mut options = args.erofs_options()?;
    if args.format == Format::Rofs && args.has_erofs_options() {
        return Err(Failure::usage(
            "--compress, --level, --chunksize, --dedupe, --no-hashes, --oci, --sign and --trace require --format erofs",
        ));
    }
    let key = args.sign.as_deref().map(secret_key).transpose()?;
    let trace = args.trace.as_deref().map(trace).transpose()?;
    let epoch = source_date_epoch()?;
    let shown = args.image.display();
    let failed = |error: io::Error| Failure::new(format!("{shown}: {error}"));
    let to_stdout = args.image.as_os_str() == "-";
    if args.json && to_stdout {
        return Err(Failure::usage(
            "--json requires a file for the image, not standard output",
        ));
    }
    if args.oci && to_stdout {
        return Err(Failure::usage(
            "--oci requires a directory, not standard output",
        ));
    }
    let layout = args.oci.then(|| Layout::create(&args.image));
    let layout = layout.transpose().map_err(failed)?;
    let mut output = match (&layout, to_stdout) {
        (Some(layout), _) => Output::to_file(layout.layer_path()),
        (None, true) => Output::to_stdout(),
        (None, false) => Output::to_file(&args.image),
    }
    .map_err(failed)?;
    if args.format == Format::Erofs && !args.no_hashes {
        output = output.with_hashes();
    }
    // A tree that cannot be parsed is reported below.
    let source = args.tree.parse::<Source>();
    confinement::enter_writer(source.is_ok_and(|source| confinement::connects(&source)));
    let input = Input::find(&args.tree, args.oci)?;
    let mut plan = input.plan(&output)?;
    let config = match args.oci {
        true => input.image_config()?,
        false => None,
    };
    plan.set_owners(args.owner, args.group);
    if let Some(epoch) = epoch {
        plan.clamp_times(epoch);
    }
    if let Some(trace) = &trace {
        options.first = trace.files(&plan);
    }
    let progress = Progress::new(args.quiet);
    let written = match args.format {
        Format::Erofs => pack::erofs::write(&plan, &options, &mut output, &progress)
            .map(|dropped| erofs_omissions(&dropped)),
        Format::Rofs => {
            pack::rofs::write(&plan, &mut output, &progress).map(|dropped| rofs_omissions(&dropped))
        }
    };
    progress.finish();
    let lines = written.map_err(|error| Failure::new(format!("{}: {error}", args.tree)))?;
    let readahead = match &trace {
        Some(trace) => trace
            .readahead_ranges(output.flushed_file().map_err(failed)?)
            .map_err(|error| Failure::new(format!("{shown}: {error}")))?,
        None => Vec::new(),
    };
    let root = output
        .write_sidecar(&readahead, key.as_ref())
        .map_err(failed)?;
    output.finish().map_err(failed)?;
    let mut manifest = None;
    if let Some(layout) = layout {
        let config = config.unwrap_or_else(|| Config::new(&Platform::host()));
        let finished = layout.finish(config, root.as_ref(), epoch, key.as_ref());
        manifest = Some(finished.map_err(failed)?);
    }
    if !args.quiet {
        lines
            .iter()
            .for_each(|line| print_line(format_args!("barge: {shown}: {line}")));
    }
    if !args.json {
        return Ok(ExitCode::SUCCESS);
    }
    let file = match &manifest {
        Some(manifest) => layer_of(&args.image, manifest).map_err(failed)?,
        None => args.image.clone(),
    };
    let (size, digest) = size_and_digest(&file).map_err(failed)?;
    let object = json!({
        "image": shown.to_string(),
        "format": match args.format {
            Format::Erofs => "erofs",
            Format::Rofs => "rofs",
        },
        "size": size,
        "digest": digest,
        "root": root.map(hex),
        "signed": key.is_some(),
        "tree": tree_counts(&plan).map_err(|error| Failure::new(format!("{shown}: {error}")))?,
        "oci": manifest.map(|manifest| json!({
            "manifest": manifest.to_string(),
            "reference": format!("oci:{shown}"),
        })),
    });
    print_object(&object, ExitCode::SUCCESS)
}

/// Prints an object as a line. Returns `code`, unless that fails.
fn print_object(object: &Value, code: ExitCode) -> CommandResult {
    let written = writeln!(stdout(), "{object}");
    finish_output(written, &ErrorReporter::default()).map(|_| code)
}

fn hex(hash: pack::Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the size in bytes and the SHA-256 digest of a file.
fn size_and_digest(path: &Path) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let digest = Algorithm::Sha256.digest_of(&mut file)?;
    Ok((size, digest.to_string()))
}

/// Returns the path of the only layer of the image `manifest` in the layout at `dir`.
fn layer_of(dir: &Path, manifest: &Digest) -> io::Result<PathBuf> {
    let text = std::fs::read(dir.join(manifest.blob_path()))?;
    let manifest: Value = serde_json::from_slice(&text)?;
    let layer = manifest["layers"][0]["digest"].as_str();
    let layer = layer.and_then(|layer| layer.parse::<Digest>().ok());
    let layer = layer.ok_or(io::ErrorKind::InvalidData)?;
    Ok(dir.join(layer.blob_path()))
}

/// Returns the numbers of nodes of a tree, by kind, and the bytes of its files.
fn tree_counts(plan: &Plan) -> pack::Result<Value> {
    let visits = plan.walk()?;
    let (mut files, mut directories, mut others) = (0, 0, 0);
    for visit in &visits {
        match plan.kind(visit.node) {
            Kind::File(_) => files += 1,
            Kind::Directory(_) => directories += 1,
            _ => others += 1,
        }
    }
    Ok(json!({
        "files": files,
        "directories": directories,
        "others": others,
        "bytes": plan.contents_size(&visits),
    }))
}

impl pack::Progress for Progress {
    fn set_total(&self, bytes: u64) {
        self.inc_length(bytes);
    }

    fn advance(&self, bytes: u64) {
        self.inc(bytes);
    }
}

/// Reads a trace.
fn trace(file: &Path) -> Result<Trace, Failure> {
    let failed = |error: &dyn Display| Failure::new(format!("{}: {error}", file.display()));
    let bytes = std::fs::read(file).map_err(|error| failed(&error))?;
    Trace::parse(&bytes).map_err(|error| failed(&error))
}

/// Reads the key to sign with.
fn secret_key(file: &Path) -> Result<SecretKey, Failure> {
    let failed = |error: &dyn Display| Failure::new(format!("{}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| failed(&error))?;
    SecretKey::from_pem(&text).map_err(|error| failed(&error))
}

/// Returns the latest time for files in a reproducible image, if the environment sets one
/// (reproducible-builds.org).
fn source_date_epoch() -> Result<Option<i64>, Failure> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") else {
        return Ok(None);
    };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    let got = text.to_string_lossy();
    let line = || format!("expected seconds in SOURCE_DATE_EPOCH, got '{got}'");
    seconds.map(Some).ok_or_else(|| Failure::usage(line()))
}

/// TREE, resolved once: its layers and its configuration are of the same image.
struct Input<'a> {
    /// TREE, for messages.
    shown: &'a str,
    kind: InputKind,
}

enum InputKind {
    Archive(File),
    Layout(OciLayout),
    Source(Source),
}

impl Input<'_> {
    /// Finds TREE: an archive, an OCI image, or any source. If the configuration of an image is
    /// needed, a tag in a registry is replaced by its digest.
    fn find(shown: &str, with_config: bool) -> Result<Input<'_>, Failure> {
        let failed = |error: &dyn Display| Failure::new(format!("{shown}: {error}"));
        let found = |kind| Ok(Input { shown, kind });
        if shown == "-" {
            let file = stdin::file().map_err(|error| failed(&error))?;
            return found(InputKind::Archive(file));
        }
        let source: Source = shown
            .parse()
            .map_err(|bad| Failure::usage(format!("{bad}")))?;
        match source {
            Source::HostDir(path) if !shown.starts_with("dir:") => {
                if path.is_file() && is_archive(&path).map_err(|error| failed(&error))? {
                    let file = File::open(&path).map_err(|error| failed(&error))?;
                    return found(InputKind::Archive(file));
                }
                if is_oci_layout(&path) {
                    let layout = OciLayout::open(&path).map_err(|error| failed(&error))?;
                    return found(InputKind::Layout(layout));
                }
                found(InputKind::Source(Source::HostDir(path)))
            }
            source if with_config => {
                let resolved = stores::resolve(source).map_err(|error| failed(&error))?;
                found(InputKind::Source(resolved))
            }
            source => found(InputKind::Source(source)),
        }
    }

    /// Returns the tree. Archives are decompressed next to `output`.
    fn plan(&self, output: &Output) -> Result<Plan, Failure> {
        let failed = |error: &dyn Display| Failure::new(format!("{}: {error}", self.shown));
        let scratch = || output.temp_file();
        let source = match &self.kind {
            InputKind::Archive(file) => {
                let file = file.try_clone().map_err(|error| failed(&error))?;
                let plain = input::decompress(file, scratch, u64::MAX);
                let plain = plain.map_err(|error| failed(&error))?;
                return input::tar(plain).map_err(|error| failed(&error));
            }
            InputKind::Layout(layout) => {
                return layout.tree(scratch).map_err(|error| failed(&error));
            }
            InputKind::Source(source) => source,
        };
        let open_failed = |error: io::Error| failed(&open_error(source, &error));
        if let Source::HostDir(path) = source
            && let Err(error) = path.metadata()
            && error.kind() == io::ErrorKind::NotFound
        {
            return Err(open_failed(error));
        }
        let (fs, path) = source.find().map_err(open_failed)?;
        let tree = Tree::new(fs);
        let root = tree.resolve(&path, true).map_err(|errno| failed(&errno))?;
        let (fs, caller) = (tree.fs.clone(), tree.caller().clone());
        input::file_system(fs, caller, root, &TreeLimit::none()).map_err(|error| failed(&error))
    }

    /// Returns the configuration of the image, if it is one with a configuration.
    fn image_config(&self) -> Result<Option<Config>, Failure> {
        let failed = |error: &dyn Display| Failure::new(format!("{}: {error}", self.shown));
        match &self.kind {
            InputKind::Layout(layout) => layout.config().map_err(|error| failed(&error)),
            InputKind::Source(source) => stores::config(source).map_err(|error| failed(&error)),
            InputKind::Archive(_) => Ok(None),
        }
    }
}

fn is_archive(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    File::open(path)?.take(512).read_to_end(&mut head)?;
    Ok(input::is_archive(&head))
}

fn is_oci_layout(path: &Path) -> bool {
    let has = |name: &str| PathBuf::from(path).join(name).is_file();
    has("oci-layout") && has("index.json")
}

/// Returns a line for each property of the tree that the image lacks.
fn erofs_omissions(dropped: &pack::erofs::Dropped) -> Vec<String> {
    let attribute = |(name, nodes): (&Vec<u8>, &u64)| {
        let name = String::from_utf8_lossy(name);
        format!(
            "omitted the extended attribute {} of {nodes}: EROFS has no such prefix",
            name.escape_debug()
        )
    };
    dropped.xattrs.iter().map(attribute).collect()
}

fn rofs_omissions(dropped: &pack::rofs::Dropped) -> Vec<String> {
    let counts = [
        (dropped.special, "omitted devices, pipes and sockets"),
        (dropped.xattrs, "omitted the extended attributes of"),
        (dropped.sparse, "zeros in place of the holes of"),
    ];
    let nonzero = counts.iter().filter(|(count, _)| *count > 0);
    let lines = nonzero.map(|(count, what)| format!("{what}: {count}"));
    let first = "omitted permissions, owners and times: ROFS has none".to_owned();
    std::iter::once(first).chain(lines).collect()
}
