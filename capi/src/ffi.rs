//! The functions of `include/barge.h`. A pointer that may be `NULL` is an [`Option`]. All unsafe
//! code of this room is here: strings and bytes that a caller vouches for, and exported names.

#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{ptr, slice};

use barge_client::{Client, File, OpenOptions};
use libc::{c_char, c_int, c_void, size_t, ssize_t};

use crate::call::{call, invalid, message};

/// The most bytes of a source or path: a longer one is taken for one without its NUL.
const MAX_TEXT: usize = 65536;

/// A source that is open. Threads may share it.
pub struct BargeClient(Client);

/// A file that is open. Threads may share it.
pub struct BargeFile(File);

/// Opens a source: "9p://host:5640/srv", "nfs://host/srv?vers=4.2", "https://host/image.erofs",
/// "oci://host/repository:tag", "/srv" and so on. Returns 0 and stores the client, which
/// barge_client_close() closes, or returns a negative errno.
///
/// # Safety
/// `source` is `NULL` or a string that ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn barge_client_open(
    source: *const c_char,
    client: Option<&mut MaybeUninit<Option<Box<BargeClient>>>>,
) -> c_int {
    status(|| {
        // SAFETY: the caller vouches for the string.
        let source = unsafe { text(source) }?;
        let client = client.ok_or_else(|| invalid("client is NULL"))?;
        let source = str::from_utf8(source).map_err(|_| invalid("expected a source in UTF-8"))?;
        client.write(Some(Box::new(BargeClient(Client::open(source)?))));
        Ok(())
    })
}

/// Closes a client, which no call may use meanwhile or later; its files may be used further. Does
/// nothing with NULL.
#[unsafe(no_mangle)]
pub extern "C" fn barge_client_close(client: Option<Box<BargeClient>>) {
    status(|| {
        drop(client);
        Ok(())
    });
}

/// Opens an existing file of a source; flags are O_RDONLY or O_RDWR. The path begins at the root of
/// the source. Returns 0 and stores the file, which barge_file_close() closes, or returns a
/// negative errno.
///
/// # Safety
/// `path` is `NULL` or a string that ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn barge_file_open(
    client: Option<&BargeClient>,
    path: *const c_char,
    flags: c_int,
    file: Option<&mut MaybeUninit<Option<Box<BargeFile>>>>,
) -> c_int {
    status(|| {
        let client = client.ok_or_else(|| invalid("client is NULL"))?;
        // SAFETY: the caller vouches for the string.
        let path = unsafe { text(path) }?;
        let file = file.ok_or_else(|| invalid("file is NULL"))?;
        let write = match flags {
            libc::O_RDONLY => false,
            libc::O_RDWR => true,
            _ => return Err(invalid("expected flags O_RDONLY or O_RDWR")),
        };
        let mut options = OpenOptions::new();
        let path = Path::new(OsStr::from_bytes(path));
        let opened = client.0.open_with(path, options.read(true).write(write))?;
        if opened.metadata()?.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::EISDIR));
        }
        file.write(Some(Box::new(BargeFile(opened))));
        Ok(())
    })
}

/// Returns the size of a file in bytes, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn barge_file_size(file: Option<&BargeFile>) -> i64 {
    call(|| {
        let file = open(file)?;
        i64::try_from(file.metadata()?.len())
            .map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))
    })
}

/// Reads count bytes at offset, fewer only if the file ends. Returns the number of bytes, or a
/// negative errno, after which the contents of the buffer are undefined.
///
/// # Safety
/// `buffer` is `NULL` or has `count` bytes that may be written to, and that no other thread uses
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn barge_file_pread(
    file: Option<&BargeFile>,
    buffer: *mut c_void,
    count: size_t,
    offset: u64,
) -> ssize_t {
    call(|| {
        let file = open(file)?;
        check(buffer, count, offset)?;
        if count == 0 {
            return Ok(0);
        }
        let buffer = buffer.cast::<u8>();
        // SAFETY: the caller vouches for the bytes, which a slice needs initialized; the pointer is
        // not NULL and the count at most isize::MAX.
        let buffer = unsafe {
            ptr::write_bytes(buffer, 0, count);
            slice::from_raw_parts_mut(buffer, count)
        };
        let mut done = 0;
        while done < count {
            match file.read_at(&mut buffer[done..], offset + done as u64)? {
                0 => break,
                more => done += more,
            }
        }
        Ok(done as i64)
    }) as ssize_t
}

/// Writes count bytes at offset. Returns count, or a negative errno, after which some of the bytes
/// may have been written.
///
/// # Safety
/// `data` is `NULL` or has `count` initialized bytes that no other thread changes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn barge_file_pwrite(
    file: Option<&BargeFile>,
    data: *const c_void,
    count: size_t,
    offset: u64,
) -> ssize_t {
    call(|| {
        let file = open(file)?;
        check(data, count, offset)?;
        if count == 0 {
            return Ok(0);
        }
        // SAFETY: the caller vouches for the bytes; the pointer is not NULL and the count at most
        // isize::MAX.
        let data = unsafe { slice::from_raw_parts(data.cast::<u8>(), count) };
        file.write_all_at(data, offset)?;
        Ok(count as i64)
    }) as ssize_t
}

/// Makes all data durable that was written to the file, as fdatasync(2). Returns 0 or a negative
/// errno.
#[unsafe(no_mangle)]
pub extern "C" fn barge_file_flush(file: Option<&BargeFile>) -> c_int {
    status(|| open(file)?.sync_data())
}

/// Closes a file, which no call may use meanwhile or later. Returns 0, or the negative errno of an
/// earlier write that was not reported yet; the file is closed in any case. Does nothing with NULL.
#[unsafe(no_mangle)]
pub extern "C" fn barge_file_close(file: Option<Box<BargeFile>>) -> c_int {
    status(|| match file {
        Some(file) => file.0.finish(),
        None => Ok(()),
    })
}

/// Returns the message of the last call that failed in this thread, in one line, or an empty
/// string. The next call that fails in this thread replaces it.
#[unsafe(no_mangle)]
pub extern "C" fn barge_get_error() -> *const c_char {
    message()
}

fn status(operation: impl FnOnce() -> io::Result<()>) -> c_int {
    call(|| operation().map(|()| 0)) as c_int
}

fn open(file: Option<&BargeFile>) -> io::Result<&File> {
    file.map(|file| &file.0)
        .ok_or_else(|| invalid("file is NULL"))
}

/// Returns the bytes of a string before its NUL.
///
/// # Safety
/// `text` is `NULL`, or a string that ends with NUL or has `MAX_TEXT` bytes, while the result is
/// used.
unsafe fn text<'a>(text: *const c_char) -> io::Result<&'a [u8]> {
    if text.is_null() {
        return Err(invalid("the string is NULL"));
    }
    // SAFETY: bytes up to the first NUL, or MAX_TEXT, belong to the string.
    let len = (0..MAX_TEXT).find(|&at| unsafe { text.add(at).read() } == 0);
    let len = len.ok_or_else(|| invalid("the string does not end within 64 KiB"))?;
    // SAFETY: these bytes were read above.
    Ok(unsafe { slice::from_raw_parts(text.cast(), len) })
}

/// Checks the buffer of a read or write.
fn check<T>(buffer: *const T, count: size_t, offset: u64) -> io::Result<()> {
    if buffer.is_null() && count > 0 {
        return Err(invalid("the buffer is NULL"));
    }
    if ssize_t::try_from(count).is_err() {
        return Err(invalid("the count is larger than SSIZE_MAX"));
    }
    let end = offset.checked_add(count as u64);
    if end.is_none_or(|end| i64::try_from(end).is_err()) {
        return Err(invalid("the end of the range is larger than INT64_MAX"));
    }
    Ok(())
}
