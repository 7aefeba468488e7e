//! `barge check`.

use std::fs::File;
use std::io::Read;
use std::process::ExitCode;

use super::CheckArgs;
use crate::{Done, Failure};

/// Looks at an image.
pub(crate) fn check(args: &CheckArgs) -> Done {
    let shown = args.image.display();
    let failed = |what: &dyn std::fmt::Display| Failure::new(format!("{shown}: {what}"));
    let mut head = [0; 8];
    let mut file = File::open(&args.image).map_err(|error| failed(&error))?;
    file.read_exact(&mut head).map_err(|error| failed(&error))?;
    Ok(ExitCode::SUCCESS)
}
