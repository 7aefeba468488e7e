//! Random bytes from the kernel: getrandom(2).

use rustix::io::{Errno, Result};

/// Returns `N` random bytes, suitable for keys. Blocks during boot until the kernel has entropy.
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let rest = &mut bytes[filled..];
        // SAFETY: the kernel writes at most `rest.len()` bytes at `rest`.
        #[allow(unsafe_code)]
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(got) => filled += got,
            Err(_) => match crate::last_error() {
                Errno::INTR => {}
                error => return Err(error),
            },
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_keys_differ() {
        let keys = [bytes::<32>(), bytes::<32>()];
        assert!(keys[0].is_ok() && keys[0] != keys[1]);
        assert!(!keys[0].is_ok_and(|key| key.starts_with(&[0; 16])));
    }
}
