//! Names in little memory, as there may be one for every file of a tree.

use vfs::Name;

/// A file's name: without memory of its own up to 15 bytes, and otherwise in the smallest block of
/// malloc(3) that holds it. The rest of the block is zero, which no name contains.
#[derive(Clone, Debug)]
pub struct CompactName(Padded);

#[derive(Clone, Debug)]
enum Padded {
    Inline([u8; 15]),
    Bytes24(Box<[u8; 24]>),
    Bytes40(Box<[u8; 40]>),
    Bytes56(Box<[u8; 56]>),
    Bytes88(Box<[u8; 88]>),
    Bytes136(Box<[u8; 136]>),
    Bytes256(Box<[u8; 256]>),
}

impl CompactName {
    /// Returns `name`.
    pub fn new(name: Name<'_>) -> CompactName {
        let name = name.bytes();
        CompactName(match name.len() {
            0..=15 => Padded::Inline(padded(name)),
            16..=24 => Padded::Bytes24(Box::new(padded(name))),
            25..=40 => Padded::Bytes40(Box::new(padded(name))),
            41..=56 => Padded::Bytes56(Box::new(padded(name))),
            57..=88 => Padded::Bytes88(Box::new(padded(name))),
            89..=136 => Padded::Bytes136(Box::new(padded(name))),
            _ => Padded::Bytes256(Box::new(padded(name))),
        })
    }

    /// Returns the name's bytes.
    pub fn bytes(&self) -> &[u8] {
        let padded: &[u8] = match &self.0 {
            Padded::Inline(name) => name,
            Padded::Bytes24(name) => &**name,
            Padded::Bytes40(name) => &**name,
            Padded::Bytes56(name) => &**name,
            Padded::Bytes88(name) => &**name,
            Padded::Bytes136(name) => &**name,
            Padded::Bytes256(name) => &**name,
        };
        let len = padded.iter().position(|&byte| byte == 0);
        &padded[..len.unwrap_or(padded.len())]
    }
}

fn padded<const N: usize>(name: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    padded[..name.len()].copy_from_slice(name);
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_any_length_is_kept() {
        assert_eq!(size_of::<CompactName>(), 16);
        for len in 1..=Name::MAX {
            let name = vec![b'n'; len];
            let kept = CompactName::new(Name::new(&name).expect("a name"));
            assert_eq!(kept.bytes(), name);
        }
    }
}
