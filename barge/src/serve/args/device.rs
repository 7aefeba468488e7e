//! Devices of virtual machines: their vhost-user sockets, sources and processors.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use remote::absolute_text;
use transports::Addr;

/// The processors that the threads of queues are pinned to, in turn; an empty list pins none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Affinity(Vec<usize>);

impl Affinity {
    /// Returns the processor of `queue`, or `None` for the first `free` queues, which are not
    /// pinned.
    pub(in crate::serve) fn processor_of(&self, queue: usize, free: usize) -> Option<usize> {
        let index = queue.checked_sub(free)?.checked_rem(self.0.len())?;
        Some(self.0[index])
    }
}

/// Parses a list in the syntax of taskset(1): `0,2,4-7`.
impl FromStr for Affinity {
    type Err = String;

    fn from_str(text: &str) -> Result<Affinity, String> {
        let expected = || format!("expected processors such as 0,2,4-7, got '{text}'");
        let number = |text: &str| {
            let number = text.parse().ok();
            number.filter(|&number: &usize| number < rustix::thread::CpuSet::MAX_CPU)
        };
        let mut all = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => all.extend(first..=last),
                _ => return Err(expected()),
            }
        }
        Ok(Affinity(all))
    }
}

/// `[NAME=]SOCKET`: the socket of a device, and its source; without a name, all sources as one
/// tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketArg {
    pub(in crate::serve) name: Option<String>,
    pub(in crate::serve) addr: Addr,
}

impl FromStr for SocketArg {
    type Err = String;

    fn from_str(text: &str) -> Result<SocketArg, String> {
        let (name, socket) = SocketArg::split(text);
        if socket.is_empty() {
            return Err("expected [NAME=]SOCKET".into());
        }
        Ok(SocketArg {
            name: name.map(str::to_owned),
            addr: Addr::Unix(socket.into()),
        })
    }
}

impl SocketArg {
    /// Returns `text`, which begins with such an argument, with an absolute path: a relative one
    /// begins in the directory `dir`.
    pub(crate) fn absolute(text: &str, dir: &Path) -> Result<String, String> {
        let (name, socket) = SocketArg::split(text);
        let socket = absolute_text(socket, dir)?;
        Ok(name.map_or_else(|| socket.clone(), |name| format!("{name}={socket}")))
    }

    /// Splits `text` into the name, if there is one, and the rest.
    fn split(text: &str) -> (Option<&str>, &str) {
        match text.split_once('=') {
            // An equals sign after any other text is part of a path or an option.
            Some((name, rest)) if !name.contains(['/', ',']) => (Some(name), rest),
            _ => (None, text),
        }
    }
}

impl fmt::Display for SocketArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}=")?;
        }
        match &self.addr {
            Addr::Unix(path) => path.display().fmt(f),
            other => other.fmt(f),
        }
    }
}

/// `[NAME=]SOCKET[,tag=TAG]`: a device of virtiofs or 9P with a tag of at most `MAX_TAG_LEN` bytes,
/// by which the guest mounts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaggedDevice<const MAX_TAG_LEN: usize> {
    pub(in crate::serve) socket: SocketArg,
    /// The tag; by default the name of the source if that is short enough, and else `share`.
    pub(in crate::serve) tag: String,
}

/// A virtiofs device. An empty tag means that the monitor supplies the device's configuration.
pub(crate) type VirtiofsDevice = TaggedDevice<36>;

/// A 9P device. Linux reads tags by pages (`net/9p/trans_virtio.c`), and a monitor reads no more
/// than 256 bytes of configuration, of which two are the length.
pub(crate) type NinePDevice = TaggedDevice<254>;

impl VirtiofsDevice {
    /// Returns the device's configuration: the padded tag, and the number of request queues (virtio
    /// 1.3, 5.11.4).
    pub(in crate::serve) fn config_space(&self, request_queues: u32) -> Vec<u8> {
        if self.tag.is_empty() {
            return Vec::new();
        }
        let mut space = self.tag.clone().into_bytes();
        space.resize(VirtiofsDevice::MAX_TAG_LEN, 0);
        space.extend(request_queues.to_le_bytes());
        space
    }
}

impl NinePDevice {
    /// Returns the device's configuration: the length of the tag, and the tag (virtio 1.3, 5.16.4).
    pub(in crate::serve) fn config_space(&self) -> Vec<u8> {
        let len = self.tag.len() as u16;
        [&len.to_le_bytes(), self.tag.as_bytes()].concat()
    }
}

impl<const MAX_TAG_LEN: usize> TaggedDevice<MAX_TAG_LEN> {
    const MAX_TAG_LEN: usize = MAX_TAG_LEN;

    /// Parses a tag.
    pub(in crate::serve) fn parse_tag(text: &str) -> Result<String, String> {
        if !(1..=MAX_TAG_LEN).contains(&text.len()) {
            return Err(format!(
                "expected a tag of 1 to {MAX_TAG_LEN} bytes, got '{text}'"
            ));
        }
        Ok(text.to_owned())
    }
}

impl<const MAX_TAG_LEN: usize> FromStr for TaggedDevice<MAX_TAG_LEN> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, tag) = match text.rsplit_once(",tag=") {
            Some((address, tag)) => (address, Some(tag)),
            None => (text, None),
        };
        let socket: SocketArg = address
            .parse()
            .map_err(|expected| format!("{expected}[,tag=TAG]"))?;
        let name = socket.name.as_deref();
        let name = name.filter(|name| Self::parse_tag(name).is_ok());
        let tag = Self::parse_tag(tag.or(name).unwrap_or("share"))?;
        Ok(TaggedDevice { socket, tag })
    }
}

impl<const MAX_TAG_LEN: usize> fmt::Display for TaggedDevice<MAX_TAG_LEN> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},tag={}", self.socket, self.tag)
    }
}

/// `[NAME=]SOCKET[,file=FILE][,ro]`: a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Drive {
    pub(in crate::serve) socket: SocketArg,
    /// The path of the file in the source; empty for a source that is an image.
    pub(in crate::serve) file: String,
    pub(in crate::serve) read_only: bool,
}

impl FromStr for Drive {
    type Err = String;

    fn from_str(text: &str) -> Result<Drive, String> {
        let (text, read_only) = match text.strip_suffix(",ro") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (address, file) = text.split_once(",file=").unwrap_or((text, ""));
        let socket = address
            .parse()
            .map_err(|expected| format!("{expected}[,file=FILE][,ro]"))?;
        Ok(Drive {
            socket,
            file: file.to_owned(),
            read_only,
        })
    }
}

impl fmt::Display for Drive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)?;
        if !self.file.is_empty() {
            write!(f, ",file={}", self.file)?;
        }
        f.write_str(if self.read_only { ",ro" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_socket_and_perhaps_a_name() {
        let socket = |text: &str| text.parse::<SocketArg>();
        assert_eq!(socket("/run/a=b").map(|socket| socket.name), Ok(None));
        assert_eq!(
            socket("home=/run/s"),
            Ok(SocketArg {
                name: Some("home".into()),
                addr: Addr::Unix("/run/s".into()),
            })
        );
        assert!(socket("home=").is_err() && socket("").is_err());
    }

    #[test]
    fn a_relative_socket_becomes_absolute_and_all_else_stays() {
        for (text, whole) in [
            ("s", "/d/s"),
            ("./s,tag=a/b", "/d/s,tag=a/b"),
            ("s,file=x=y,ro", "/d/s,file=x=y,ro"),
            ("vm=s,file=a,ro", "vm=/d/s,file=a,ro"),
            ("vm=/run/s", "vm=/run/s"),
            ("/run/a=b", "/run/a=b"),
        ] {
            assert_eq!(
                SocketArg::absolute(text, Path::new("/d")).expect(text),
                whole
            );
        }
    }

    #[test]
    fn queues_take_turns_on_the_processors_named() {
        let affinity: Affinity = "3,5-6".parse().expect("a list");
        let processors: Vec<_> = (0..6)
            .map(|queue| affinity.processor_of(queue, 1))
            .collect();
        let one = |processor| Some(processor);
        assert_eq!(processors, [None, one(3), one(5), one(6), one(3), one(5)]);
        assert_eq!(affinity.processor_of(0, 0), one(3));
        assert_eq!(Affinity::default().processor_of(1, 1), None);
        for bad in ["", "a", "1-", "3-1", "0,,1", "100000"] {
            assert!(bad.parse::<Affinity>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_device_is_a_socket_perhaps_a_source_and_a_tag() {
        for (text, name, socket, tag) in [
            ("/run/s", None, "/run/s", "share"),
            ("/run/a=b", None, "/run/a=b", "share"),
            ("home=/run/s", Some("home"), "/run/s", "home"),
            ("home=/run/s,tag=x", Some("home"), "/run/s", "x"),
            ("/run/a,b,tag=x", None, "/run/a,b", "x"),
        ] {
            let device: NinePDevice = text.parse().expect(text);
            assert_eq!(device.socket.name.as_deref(), name);
            assert_eq!(device.socket.addr.to_string(), format!("unix:{socket}"));
            assert_eq!(device.tag, tag);
        }
        let long = format!("/s,tag={}", "x".repeat(255));
        for bad in ["", "home=", ",tag=x", "/s,tag=", &long] {
            assert!(bad.parse::<NinePDevice>().is_err(), "{bad}");
            assert!(bad.parse::<VirtiofsDevice>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_that_is_too_long_is_no_tag() {
        let name = "x".repeat(37);
        let device = |text: &str| text.parse::<VirtiofsDevice>();
        let named = device(&format!("{name}=/s")).expect("a device");
        assert_eq!(named.tag, "share");
        let error = device(&format!("/s,tag={name}")).expect_err("too long");
        let expected = format!("expected a tag of 1 to 36 bytes, got '{name}'");
        assert_eq!(error, expected);
    }

    #[test]
    fn a_tag_stands_behind_its_length() {
        let device: NinePDevice = "/s,tag=abc".parse().expect("a device");
        assert_eq!(device.config_space(), b"\x03\0abc");
    }

    #[test]
    fn a_tag_of_virtiofs_is_padded() {
        let mut device: VirtiofsDevice = "/s,tag=abc".parse().expect("a device");
        let space = [b"abc", &[0; 33][..], &[64, 0, 0, 0]].concat();
        assert_eq!(device.config_space(64), space);
        device.tag.clear();
        assert_eq!(device.config_space(64), b"");
    }

    #[test]
    fn a_drive_is_a_socket_perhaps_a_source_a_file_and_only_to_be_read() {
        for (text, name, socket, file, read_only) in [
            ("/run/s", None, "/run/s", "", false),
            ("/run/s,ro", None, "/run/s", "", true),
            ("vm=/run/s,file=a/b,c", Some("vm"), "/run/s", "a/b,c", false),
            ("/run/a=b,file=x=y,ro", None, "/run/a=b", "x=y", true),
        ] {
            let drive: Drive = text.parse().expect(text);
            assert_eq!(drive.socket.name.as_deref(), name);
            assert_eq!(drive.socket.addr.to_string(), format!("unix:{socket}"));
            assert_eq!((drive.file.as_str(), drive.read_only), (file, read_only));
        }
        for bad in ["", "vm=", ",ro", ",file=x"] {
            assert!(bad.parse::<Drive>().is_err(), "{bad}");
        }
    }
}
