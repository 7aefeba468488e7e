//! The `:authority` of requests, which clients of a Unix socket choose freely: gRPC's C core
//! (Python, C++) sends the percent-encoded path of the socket, which is no authority of a URI, so
//! that h2 resets the stream. No method depends on it: it is replaced before h2 sees it.
//!
//! [`Filter`] finds the frames with headers (RFC 9113 section 6.2) and in them the field (RFC 7541
//! section 6). The replacement has one byte: a decoder whose entries are at most as long as the
//! encoder's evicts none that the encoder still has.
//!
//! Deliberately absent: a name that refers to an entry of the dynamic table, as no encoder prefers
//! that to the entry of the static one; blocks that h2 refuses for their length.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// A connection whose requests have a valid authority.
pub(crate) struct Connection {
    stream: UnixStream,
    filter: Filter,
    /// Bytes to pass on, from `passed` on.
    out: Vec<u8>,
    passed: usize,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> Connection {
        Connection {
            stream,
            filter: Filter::default(),
            out: Vec::new(),
            passed: 0,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut bytes = [0; 8192];
        while this.passed == this.out.len() {
            let mut received = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut received))?;
            if received.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.out.clear();
            this.passed = 0;
            this.filter.push(received.filled(), &mut this.out);
        }
        let rest = &this.out[this.passed..];
        let len = rest.len().min(into.remaining());
        into.put_slice(&rest[..len]);
        this.passed += len;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// The length of a client's connection preface (RFC 9113 section 3.4).
const PREFACE: usize = 24;

/// The length of a frame's header.
const HEAD: usize = 9;

/// The longest frame that h2 accepts (`SETTINGS_MAX_FRAME_SIZE`, by default).
const MAX_FRAME: usize = 16_384;

/// The longest block of headers that is kept: h2 refuses shorter ones.
const MAX_BLOCK: usize = 64 << 10;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Replaces the authority in the bytes that a client sends.
struct Filter {
    /// The number of bytes to pass on as they are.
    pass: usize,
    /// Bytes that are kept until they are a whole frame, or a whole block of headers in frames.
    kept: Vec<u8>,
}

impl Default for Filter {
    fn default() -> Filter {
        Filter {
            pass: PREFACE,
            kept: Vec::new(),
        }
    }
}

impl Filter {
    /// Appends the bytes to pass on to `out`, given the next `bytes` of the client.
    fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        loop {
            let (now, rest) = bytes.split_at(bytes.len().min(self.pass));
            out.extend(now);
            self.pass -= now.len();
            bytes = rest;
            if bytes.is_empty() && self.kept.is_empty() {
                return;
            }
            self.kept.extend(bytes);
            let Some(next) = next(&self.kept) else {
                return;
            };
            let kept = std::mem::take(&mut self.kept);
            match next {
                Next::Other(len) => self.pass = len,
                Next::Block(len, block) => {
                    out.extend(block);
                    self.kept = kept[len..].to_vec();
                    // The rest begins with a frame.
                    bytes = &[];
                    continue;
                }
            }
            let (now, rest) = kept.split_at(kept.len().min(self.pass));
            out.extend(now);
            self.pass -= now.len();
            self.kept = rest.to_vec();
            bytes = &[];
            if self.kept.is_empty() {
                return;
            }
        }
    }
}

/// The beginning of the kept bytes.
enum Next {
    /// A frame of this length that is passed on as it is.
    Other(usize),
    /// Frames of this length with a block of headers, and the frames to pass on instead.
    Block(usize, Vec<u8>),
}

/// A frame's header.
struct Head {
    len: usize,
    kind: u8,
    flags: u8,
    stream: [u8; 4],
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Head> {
        let &[a, b, c, kind, flags, s, t, u, v] = bytes.get(..HEAD)? else {
            return None;
        };
        Some(Head {
            len: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: [s, t, u, v],
        })
    }

    fn put(&self, payload: &[&[u8]], out: &mut Vec<u8>) {
        let len = payload.iter().map(|part| part.len()).sum::<usize>() as u32;
        out.extend(&len.to_be_bytes()[1..]);
        out.extend([self.kind, self.flags]);
        out.extend(self.stream);
        payload.iter().for_each(|part| out.extend(*part));
    }
}

/// Returns what `kept` begins with, or `None` until there is more of it.
fn next(kept: &[u8]) -> Option<Next> {
    let first = Head::read(kept)?;
    if first.kind != HEADERS || first.len > MAX_FRAME {
        return Some(Next::Other(HEAD + first.len));
    }
    let payload = kept.get(HEAD..HEAD + first.len)?;
    let as_it_is = Some(Next::Other(HEAD + first.len));
    let Some((priority, fragment)) = fragment(&first, payload) else {
        return as_it_is;
    };
    let mut block = fragment.to_vec();
    let (mut len, mut flags) = (HEAD + first.len, first.flags);
    while flags & END_HEADERS == 0 {
        let more = Head::read(&kept[len..])?;
        if more.kind != CONTINUATION || block.len() + more.len > MAX_BLOCK {
            return as_it_is;
        }
        block.extend(kept.get(len + HEAD..len + HEAD + more.len)?);
        (len, flags) = (len + HEAD + more.len, more.flags);
    }
    let Some(block) = replace(&block) else {
        return Some(Next::Other(len));
    };
    Some(Next::Block(len, frames(first, priority, &block)))
}

/// Returns the priority and the fragment of the block in a frame of headers, without the padding.
fn fragment<'a>(head: &Head, mut payload: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    if head.flags & PADDED != 0 {
        let (&padding, rest) = payload.split_first()?;
        payload = rest.get(..rest.len().checked_sub(padding.into())?)?;
    }
    payload.split_at_checked(if head.flags & PRIORITY != 0 { 5 } else { 0 })
}

/// Returns the frames of `block`, the first of which replaces that with `head`.
fn frames(mut head: Head, priority: &[u8], block: &[u8]) -> Vec<u8> {
    let (first, mut rest) = block.split_at(block.len().min(MAX_FRAME - priority.len()));
    let end = |rest: &[u8]| if rest.is_empty() { END_HEADERS } else { 0 };
    let mut out = Vec::new();
    head.flags = (head.flags & !(PADDED | END_HEADERS)) | end(rest);
    head.put(&[priority, first], &mut out);
    head.kind = CONTINUATION;
    while !rest.is_empty() {
        let (now, after) = rest.split_at(rest.len().min(MAX_FRAME));
        rest = after;
        head.flags = end(rest);
        head.put(&[now], &mut out);
    }
    out
}

/// The index of `:authority` in the static table.
const AUTHORITY: usize = 1;

/// `:authority` as a string, as it is and in Huffman's code.
const NAMES: [&[u8]; 2] = [b"\x0a:authority", b"\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f"];

/// A valid authority of one byte.
const VALUE: &[u8] = b"\x01u";

/// Returns a block of headers with another authority, or `None` if it is malformed.
fn replace(mut block: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(block.len());
    while let Some(&first) = block.first() {
        let start = block;
        let bits = match first {
            0x80.. => 7,
            0x40..0x80 => 6,
            0x20..0x40 => 5,
            _ => 4,
        };
        let index = integer(&mut block, bits)?;
        // An indexed field, or an update of the size of the table.
        if bits == 7 || bits == 5 {
            out.extend(&start[..start.len() - block.len()]);
            continue;
        }
        let is_authority = match index {
            0 => NAMES.contains(&string(&mut block)?),
            index => index == AUTHORITY,
        };
        out.extend(&start[..start.len() - block.len()]);
        let value = string(&mut block)?;
        // An empty one is shorter than the replacement.
        let replaced = is_authority && value.len() > 1;
        out.extend(if replaced { VALUE } else { value });
    }
    Some(out)
}

/// Removes an integer with a prefix of `bits` bits (RFC 7541 section 5.1).
fn integer(bytes: &mut &[u8], bits: u32) -> Option<usize> {
    let (&first, mut rest) = bytes.split_first()?;
    let most = (1 << bits) - 1;
    let mut value = usize::from(first) & most;
    if value == most {
        let mut shift = 0;
        loop {
            let (&byte, after) = rest.split_first()?;
            rest = after;
            // Longer ones are refused by h2, too.
            if shift > 21 {
                return None;
            }
            value += usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *bytes = rest;
    Some(value)
}

/// Removes a string with its length (RFC 7541 section 5.2), and returns both as they are encoded.
fn string<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let start = *bytes;
    let len = integer(bytes, 7)?;
    *bytes = bytes.get(len..)?;
    Some(&start[..start.len() - bytes.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let head = Head {
            len: 0,
            kind,
            flags,
            stream: [0, 0, 0, 1],
        };
        head.put(&[payload], &mut out);
        out
    }

    fn literal(head: &[u8], value: &[u8]) -> Vec<u8> {
        [head, &[value.len() as u8], value].concat()
    }

    /// Returns what is passed on of `sent`, which arrives in pieces of `size` bytes.
    fn passed(sent: &[u8], size: usize) -> Vec<u8> {
        let mut filter = Filter::default();
        let mut out = Vec::new();
        for piece in sent.chunks(size) {
            filter.push(piece, &mut out);
        }
        out
    }

    #[test]
    fn the_authority_is_replaced_however_it_is_encoded() {
        let path = b"%2Frun%2Fcsi%2Fcsi.sock";
        let new_name = |first: u8| [&[first], NAMES[0]].concat();
        let huffman = [&[0x40], NAMES[1]].concat();
        for head in [
            &[0x41][..],
            &[0x01],
            &[0x11],
            &new_name(0x40),
            &new_name(0),
            &huffman,
        ] {
            let block = [
                &[0x83, 0x86][..],
                &literal(head, path),
                &literal(&[0x44], b"/a/b"),
            ];
            let expected = [&[0x83, 0x86][..], head, VALUE, &literal(&[0x44], b"/a/b")];
            assert_eq!(
                replace(&block.concat()),
                Some(expected.concat()),
                "{head:x?}"
            );
        }
        for same in [
            &literal(&[0x44], path),
            &literal(&[0x41], b""),
            &vec![0x81, 0x3f, 0xe1, 0x1f],
        ] {
            assert_eq!(replace(same).as_ref(), Some(same));
        }
        for malformed in [
            &[0x41][..],
            &[0x41, 5, b'a'],
            &[0xff],
            &[0xff; 9],
            &[0x40, 0x0a, b':'],
        ] {
            assert_eq!(replace(malformed), None, "{malformed:x?}");
        }
    }

    #[test]
    fn frames_are_passed_on_in_any_pieces() {
        let field = literal(&[0x41], b"%2Fsocket");
        let short = [&[0x41], VALUE].concat();
        let (a, b) = field.split_at(4);
        let padded = [&[3][..], &[9; 5], &field, &[0; 3]].concat();
        let end = END_HEADERS;
        let priority = [&[9; 5][..], &short].concat();
        let whole = frame(HEADERS, end, &short);
        let oversize = vec![7; MAX_FRAME + 1];
        let cases = [
            (frame(0, 1, b"data"), frame(0, 1, b"data")),
            (frame(HEADERS, end, &field), whole.clone()),
            (
                frame(HEADERS, end | PADDED | PRIORITY, &padded),
                frame(HEADERS, end | PRIORITY, &priority),
            ),
            (
                [frame(HEADERS, 0, a), frame(CONTINUATION, end, b)].concat(),
                whole.clone(),
            ),
            // Malformed ones are h2's to refuse.
            (
                frame(HEADERS, end | PADDED, &[200, 1]),
                frame(HEADERS, end | PADDED, &[200, 1]),
            ),
            (frame(HEADERS, 0, &oversize), frame(HEADERS, 0, &oversize)),
            (
                [frame(HEADERS, 0, a), frame(0, 0, b)].concat(),
                [frame(HEADERS, 0, a), frame(0, 0, b)].concat(),
            ),
        ];
        let preface = [b'P'; PREFACE].to_vec();
        let (mut sent, mut expected) = (preface.clone(), preface);
        for (one, passed_on) in &cases {
            sent.extend(one);
            expected.extend(passed_on);
        }
        for size in [1, 2, 7, 64, sent.len()] {
            assert!(passed(&sent, size) == expected, "pieces of {size} bytes");
        }
    }

    #[test]
    fn a_long_block_is_divided_again() {
        let long = literal(&[0x00, 0x01, b'a'], &[b'x'; 100]).repeat(300);
        let field = literal(&[0x41], b"%2Fsocket");
        let block = [&field[..], &long].concat();
        let (a, b) = block.split_at(MAX_FRAME);
        let sent = [frame(HEADERS, 0, a), frame(CONTINUATION, END_HEADERS, b)].concat();
        let expected = [&[0x41], VALUE, &long[..]].concat();
        let (a, b) = expected.split_at(MAX_FRAME);
        let expected = [frame(HEADERS, 0, a), frame(CONTINUATION, END_HEADERS, b)].concat();
        assert!(passed(&[&[0; PREFACE][..], &sent].concat(), 999)[PREFACE..] == expected);
    }
}
