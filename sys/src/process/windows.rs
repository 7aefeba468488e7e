//! The identity of this process. Windows has no numeric users: servers see the anonymous user.

/// The user and group of nobody, the anonymous user of exports(5).
const NOBODY: u32 = 65534;

/// Returns the user ID that servers see.
pub fn user() -> u32 {
    NOBODY
}

/// Returns the group ID that servers see.
pub fn group() -> u32 {
    NOBODY
}

/// Returns the supplementary groups: none.
pub fn groups() -> Vec<u32> {
    Vec::new()
}

/// Returns the name of this host, which Windows has in the environment; `windows` without it.
pub fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "windows".into())
}
