//! The version of the program and its build.

use serde::{Deserialize, Serialize};

/// Version number.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Optional features of the program, with commas between.
const FEATURES: &str = match (cfg!(feature = "gss"), cfg!(feature = "otel")) {
    (true, true) => "gss,otel",
    (true, false) => "gss",
    (false, true) => "otel",
    (false, false) => "",
};

/// The build of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Build {
    /// Commit of the sources; empty if unknown.
    pub(crate) commit: String,
    /// Optional features, with commas between.
    pub(crate) features: String,
    /// Version of the compiler.
    pub(crate) rustc: String,
}

impl Build {
    /// Returns the build of this program.
    pub(crate) fn own() -> Build {
        Build {
            commit: env!("BARGE_COMMIT").into(),
            features: FEATURES.into(),
            rustc: env!("BARGE_RUSTC").into(),
        }
    }
}

/// Returns the lines of `--version` after the name of the program.
pub(crate) fn long() -> String {
    let Build {
        commit,
        features,
        rustc,
    } = Build::own();
    let or = |text: String, absent: &str| match text.is_empty() {
        true => absent.to_owned(),
        false => text,
    };
    format!(
        "{VERSION}\ncommit: {}\nfeatures: {}\nrustc: {rustc}",
        or(commit, "unknown"),
        or(features, "none")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_has_a_compiler_and_no_paths() {
        let build = Build::own();
        assert!(build.rustc.starts_with("1."), "{build:?}");
        assert!(!long().contains('/'), "{}", long());
    }
}
