//! The variables that configure stores, and the tenant that they belong to.

use std::ffi::OsString;
use std::fmt;

/// The variables of the environment, and whose they are.
#[derive(Clone, Default)]
pub struct Environment {
    /// In the order of their names, so that of two names of one option always the same one counts.
    variables: Vec<(String, OsString)>,
}

/// Omits the variables, which may be secrets.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment")
    }
}

impl Environment {
    /// The variable that names a [tenant](Environment::tenant).
    pub const TENANT: &str = "BARGE_TENANT";

    /// Returns the environment of this process.
    pub fn of_process() -> Environment {
        Environment::new(std::env::vars_os())
    }

    /// Returns an environment of these variables. Names that are no text are left out.
    pub fn new(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Environment {
        let mut variables: Vec<_> = variables
            .into_iter()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .collect();
        variables.sort();
        Environment { variables }
    }

    /// Returns the name of the tenant for whom images are opened, if there is one: somebody else
    /// than the user who runs this program, who has chosen the source and the credentials. A
    /// tenant's requests have the credentials in the variables or none, never those of this host
    /// or its role, and go to the store that the source names alone. Its entries of the disk cache
    /// are its own, unless hashes or a signature fix the contents.
    pub fn tenant(&self) -> Option<String> {
        let mut variables = self.variables.iter();
        let (_, name) = variables.find(|(name, _)| name == Environment::TENANT)?;
        Some(name.to_string_lossy().into_owned())
    }

    pub(crate) fn variables(&self) -> impl Iterator<Item = (&str, &OsString)> {
        self.variables
            .iter()
            .map(|(name, value)| (name.as_str(), value))
    }
}
