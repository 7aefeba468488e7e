//! Conversions between FUSE's numbers and the `vfs` types, in both directions.

use vfs::{AllocateMode, Device, OpenFlags};

use crate::numbers::Flags;

/// The open(2) flags with the same meaning in FUSE and in [`OpenFlags`].
pub(crate) const OPEN_FLAGS: [(Flags, OpenFlags); 5] = [
    (Flags::TRUNC, OpenFlags::TRUNC),
    (Flags::APPEND, OpenFlags::APPEND),
    (Flags::DSYNC, OpenFlags::DSYNC),
    (Flags::SYNC, OpenFlags::SYNC),
    (Flags::NOATIME, OpenFlags::NOATIME),
];

/// The fallocate(2) modes. The client half sends the first of those with the same meaning.
const ALLOCATE_MODES: [(u32, AllocateMode); 9] = [
    (0, AllocateMode::Extend),
    (0x01, AllocateMode::KeepSize),
    (0x03, AllocateMode::Punch),
    (0x08, AllocateMode::Collapse),
    (0x10, AllocateMode::Zero),
    (0x11, AllocateMode::ZeroKeepSize),
    (0x20, AllocateMode::Insert),
    (0x40, AllocateMode::Unshare),
    (0x41, AllocateMode::Unshare),
];

pub(crate) fn allocate_from_mode(mode: u32) -> Option<AllocateMode> {
    let known = ALLOCATE_MODES.iter().find(|(known, _)| *known == mode);
    known.map(|&(_, how)| how)
}

pub(crate) fn mode_from_allocate(how: AllocateMode) -> u32 {
    let known = ALLOCATE_MODES.iter().find(|(_, known)| *known == how);
    known.map_or(0, |&(mode, _)| mode)
}

/// Encodes a device number in 32 bits, as Linux's `new_encode_dev`.
pub(crate) fn encode_device(device: Device) -> u32 {
    let (major, minor) = (device.major, device.minor);
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// Decodes a device number that [`encode_device`] encoded.
pub(crate) fn decode_device(rdev: u32) -> Device {
    Device {
        major: (rdev & 0xf_ff00) >> 8,
        minor: (rdev & 0xff) | (rdev >> 12 & 0xf_ff00),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_the_kernels() {
        for (major, minor, rdev) in [(1, 3, 0x103), (8, 0x1_23, 0x10_0823)] {
            let device = Device { major, minor };
            assert_eq!(encode_device(device), rdev);
            assert_eq!(decode_device(rdev), device);
        }
    }

    #[test]
    fn modes_come_back() {
        for (mode, how) in ALLOCATE_MODES {
            assert_eq!(allocate_from_mode(mode), Some(how));
            assert_eq!(allocate_from_mode(mode_from_allocate(how)), Some(how));
        }
        assert_eq!(allocate_from_mode(0x80), None);
    }
}
