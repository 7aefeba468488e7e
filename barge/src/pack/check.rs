//! `barge check`.

mod hashes;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::process::ExitCode;

use command::stderr::print_line;
use erofs::check::{Finding, MAX_FINDINGS};
use pack::FileStorage;
use pack::oci::Algorithm;
use serde_json::json;
use sources::Source;
use sys::positioned::FileExt;

use super::{CheckArgs, print_object, stores};
use crate::{CommandResult, Failure, confinement, diagnose};

/// Checks an image, and writes its errors to standard error, one per line.
pub(crate) fn check(args: &CheckArgs) -> CommandResult {
    let shown = &args.image;
    let failed = |error: io::Error| {
        Failure::new(format!(
            "{shown}: {}",
            diagnose::open_error(&args.image, &error)
        ))
    };
    let keys = sources::public_keys(&args.verify_key).map_err(Failure::new)?;
    let image = stores::require_cosign_signature(&args.image, &args.cosign_key)?;
    image.expect_whole().map_err(failed)?;
    if confinement::connects(&image) {
        // Layers are decompressed and converted as they are opened.
        confinement::enter_writer(true);
    }
    let mut root = None;
    let mut file = match args.disk_cache.apply(&image) {
        Source::Image(image) => image.file().and_then(|(path, _)| File::open(path)),
        Source::HostDir(path) => File::open(path),
        other => stores::download(&other).map(|(file, found)| {
            root = found;
            file
        }),
    }
    .map_err(failed)?;
    confinement::enter_parser();
    file.rewind().map_err(failed)?;
    let mut head = Vec::new();
    Read::by_ref(&mut file)
        .take(rofs::BLOCK)
        .read_to_end(&mut head)
        .map_err(failed)?;
    if head.starts_with(&rofs::MAGIC.to_le_bytes()) {
        if !keys.is_empty() {
            let line = "expected a signature, got a ROFS image, which has none";
            return Err(Failure::new(format!("{shown}: {line}")));
        }
        check_rofs(&file, &head).map_err(|what| Failure::new(format!("{shown}: {what}")))?;
        return report(args, file, "rofs", 0);
    }
    let mut count = 0;
    let len = file.seek(SeekFrom::End(0)).map_err(failed)?;
    if len < MIN_IMAGE_LEN {
        let line = "expected an EROFS or ROFS image, got a truncated file";
        return Err(Failure::new(format!("{shown}: {line}")));
    }
    hashes::check(&file, len, &keys, root.as_ref(), &mut |what| {
        count += 1;
        print_line(format_args!("barge: {shown}: {what}"));
    })
    .map_err(failed)?;
    let copy = file.try_clone().map_err(failed)?;
    erofs::check::check(&FileStorage(copy), &mut |finding| {
        let Finding {
            path,
            message: what,
        } = finding;
        count += 1;
        let separator = if path.is_empty() { "" } else { ": " };
        let path = String::from_utf8_lossy(&path);
        let path = path.escape_debug();
        print_line(format_args!("barge: {shown}: {path}{separator}{what}"));
    });
    if count >= MAX_FINDINGS {
        print_line(format_args!(
            "barge: {shown}: further errors are not listed"
        ));
    }
    report(args, file, "erofs", count)
}

/// Ends the check of an image with `errors` errors, and prints the object of --json if wanted.
fn report(args: &CheckArgs, mut file: File, format: &str, errors: usize) -> CommandResult {
    let code = ExitCode::from(u8::from(errors > 0));
    if !args.json {
        return Ok(code);
    }
    let shown = &args.image;
    let failed = |error: io::Error| Failure::new(format!("{shown}: {error}"));
    let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
    file.rewind().map_err(failed)?;
    let digest = Algorithm::Sha256.digest_of(&mut file).map_err(failed)?;
    let object = json!({
        "image": shown.to_string(),
        "format": format,
        "size": size,
        "digest": digest.to_string(),
        "valid": errors == 0,
        "errors": errors,
    });
    print_object(&object, code)
}

/// Offset of the end of an EROFS superblock, which starts at 1024, bytes.
const MIN_IMAGE_LEN: u64 = 1024 + 128;

/// Checks an image of ROFS. The error is one line.
fn check_rofs(file: &File, head: &[u8]) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let broken = |broken: rofs::Corrupt| broken.to_string();
    let size = file.metadata().map_err(failed)?.len();
    let block = head
        .try_into()
        .map_err(|_| "the image ends in its first block")?;
    let superblock = rofs::Superblock::parse(block, size).map_err(broken)?;
    let (at, len) = superblock.tables();
    let mut tables = vec![0; len as usize];
    file.read_exact_at(&mut tables, at).map_err(failed)?;
    rofs::Tables::parse(&superblock, tables).map_err(broken)?;
    Ok(())
}
