//! Directory offsets: the source's cookies, and two of our own for `.` and `..`, which sources omit
//! and Linux lists only if a server sends them.

/// The offset after `.`.
///
/// Every other offset is the source's own cookie, so this and [`AFTER_DOTS`] are values that no
/// source counts up to and that no file system is known to use as a hash or position. A cookie that
/// equals one of them nevertheless is sent with the sign bit, which no offset of Linux has.
pub const AFTER_DOT: u64 = 0x7fff_ffe0_0d07_0001;

/// The offset after `..`.
pub const AFTER_DOTS: u64 = 0x7fff_ffe0_0d07_0002;

const SIGN: u64 = 1 << 63;

/// Converts a cookie to the offset that a client sees.
pub fn offset_of(cookie: u64) -> u64 {
    match cookie {
        AFTER_DOT | AFTER_DOTS => cookie | SIGN,
        _ => cookie,
    }
}

/// Converts a client's offset to the cookie from which to continue.
pub fn cookie_of(offset: u64) -> u64 {
    const HIDDEN_DOT: u64 = AFTER_DOT | SIGN;
    const HIDDEN_DOTS: u64 = AFTER_DOTS | SIGN;
    match offset {
        AFTER_DOT | AFTER_DOTS => 0,
        HIDDEN_DOT | HIDDEN_DOTS => offset & !SIGN,
        _ => offset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cookie_becomes_the_offset_of_a_dot_and_each_comes_back() {
        for cookie in [1, 2, 3, i64::MAX as u64, u64::MAX, AFTER_DOT, AFTER_DOTS] {
            let offset = offset_of(cookie);
            assert!(![0, AFTER_DOT, AFTER_DOTS].contains(&offset), "{cookie:x}");
            assert_eq!(cookie_of(offset), cookie);
        }
    }
}
