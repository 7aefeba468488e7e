//! The identity of this process: its user, groups and host.

/// Returns the effective user ID.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the effective group ID.
pub fn group() -> u32 {
    rustix::process::getegid().as_raw()
}

/// Returns the supplementary groups; none if they cannot be read.
pub fn groups() -> Vec<u32> {
    let groups = rustix::process::getgroups().unwrap_or_default();
    groups.into_iter().map(|group| group.as_raw()).collect()
}

/// Returns the name of this host.
pub fn host_name() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}
