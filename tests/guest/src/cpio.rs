//! Writer of `newc` cpio archives, the format of an initramfs. Not supported: hard links, owners
//! other than root, times.

/// An archive under construction.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds a directory, after its parents: the kernel does not create them.
    pub(crate) fn dir(&mut self, path: &str) {
        self.entry(path, 0o040_755, &[], (0, 0));
    }

    /// Adds a regular file.
    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entry(path, 0o100_000 | mode, content, (0, 0));
    }

    /// Adds a character device.
    pub(crate) fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, 0o020_600, &[], (major, minor));
    }

    /// Returns the finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[], (0, 0));
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8], device: (u32, u32)) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("a file of an initramfs is below 4 GiB");
        let name_size = path.len() as u32 + 1;
        // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize
        // check
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            device.0,
            device.1,
            name_size,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    /// Pads to a multiple of four, the alignment of headers and contents.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_small_archive() {
        let mut archive = Archive::default();
        archive.file("ab", 0o755, b"hello");
        let bytes = archive.finish();
        let header = b"07070100000001000081ed00000000000000000000000100000000000000050000000000000000000000000000000000000003\
                       00000000ab\0\0\0\0hello\0\0\0";
        let header: Vec<u8> = header.to_vec();
        assert_eq!(&bytes[..header.len()], &header[..]);
        assert!(bytes[header.len()..].starts_with(b"07070100000002"));
        assert!(bytes.len().is_multiple_of(4));
        assert!(bytes.ends_with(b"TRAILER!!!\0\0\0\0"));
    }
}
