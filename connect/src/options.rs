//! Options of a mount.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use remote::Retry;
use remote::ninep::Url;
use rustix::mount::{MountFlags, UnmountFlags};
use transports::fusedev::{MountFlag, is_fstab_only};

/// An option after `-o`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectOption {
    /// A flag of every file system.
    Flag(MountFlag),
    /// `retry=SECONDS`, or `hard`: no limit.
    Retry(Retry),
    /// An option of the kernel's 9P client.
    Client(String),
    /// An option for fstab, or the default.
    Ignored,
}

impl FromStr for ConnectOption {
    type Err = String;

    fn from_str(text: &str) -> Result<ConnectOption, String> {
        if let Some(flag) = MountFlag::named(text) {
            return Ok(ConnectOption::Flag(flag));
        }
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        Ok(match name {
            "hard" if text == name => ConnectOption::Retry(Retry::Forever),
            "retry" => {
                let seconds = value.parse().map_err(|_| "expected retry=SECONDS")?;
                ConnectOption::Retry(Retry::For(Duration::from_secs(seconds)))
            }
            "trans" | "rfdno" | "wfdno" | "port" | "version" | "aname" | "uname" => {
                return Err(format!("unexpected {name}=: the source determines it"));
            }
            "" => return Err("expected a mount option, got an empty one".into()),
            "defaults" | "relatime" | "norelatime" => ConnectOption::Ignored,
            name if is_fstab_only(name) => ConnectOption::Ignored,
            _ => ConnectOption::Client(text.into()),
        })
    }
}

/// The result of all options.
#[derive(Clone, Debug)]
pub struct MountSettings {
    flags: MountFlags,
    /// How long to wait for a lost server.
    pub retry: Retry,
    /// Options of the kernel's client, except for its descriptors.
    client: Vec<String>,
}

impl MountSettings {
    /// Combines `options` for the server at `url`. The last of conflicting options takes
    /// precedence.
    pub fn new<'a>(
        url: &Url,
        options: impl IntoIterator<Item = &'a ConnectOption>,
    ) -> MountSettings {
        let mut settings = MountSettings {
            flags: MountFlags::empty(),
            // A mount must not end because the server was not restarted in time.
            retry: Retry::Forever,
            client: vec!["version=9p2000.L".into()],
        };
        for (name, value) in [("aname", &url.options.aname), ("uname", &url.options.uname)] {
            if !value.is_empty() {
                settings.client.push(format!("{name}={value}"));
            }
        }
        // The maximum of the kernel's client for descriptors; its default is an eighth of it.
        settings.client.push("msize=1048576".into());
        for option in options {
            match option {
                ConnectOption::Flag(flag) => flag.apply(&mut settings.flags),
                ConnectOption::Retry(retry) => settings.retry = *retry,
                ConnectOption::Client(option) => settings.client.push(option.clone()),
                ConnectOption::Ignored => {}
            }
        }
        settings
    }

    /// Mounts the server at `url` on `dir` with mount(2). The kernel's client sends requests over
    /// `relay` before this returns, and keeps the socket open.
    pub fn mount(&self, url: &Url, dir: &Path, relay: BorrowedFd<'_>) -> io::Result<()> {
        let fd = relay.as_raw_fd();
        let client = self.client.join(",");
        let data = CString::new(format!("trans=fd,rfdno={fd},wfdno={fd},{client}"))?;
        rustix::mount::mount(url.to_string(), dir, "9p", self.flags, data.as_c_str())?;
        Ok(())
    }
}

/// Detaches the mount on `dir`: programs with open files keep them until they close them.
pub fn unmount(dir: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(dir, UnmountFlags::DETACH)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_mounts_and_ours_and_the_clients() {
        let url: Url = "9p://h/srv".parse().expect("a url");
        let all = "ro,nosuid,cache=mmap,msize=65536,retry=5,_netdev,x-systemd.automount";
        let options: Result<Vec<_>, String> = all.split(',').map(str::parse).collect();
        let settings = MountSettings::new(&url, &options.expect("all known"));
        assert_eq!(settings.flags, MountFlags::RDONLY | MountFlags::NOSUID);
        assert_eq!(settings.retry, Retry::For(Duration::from_secs(5)));
        assert_eq!(
            settings.client.join(","),
            "version=9p2000.L,aname=/srv,msize=1048576,cache=mmap,msize=65536"
        );
        assert_eq!(MountSettings::new(&url, &[]).retry, Retry::Forever);
        for bad in ["", "trans=tcp", "port=564", "aname=x", "retry=ever"] {
            assert!(bad.parse::<ConnectOption>().is_err(), "{bad}");
        }
    }
}
