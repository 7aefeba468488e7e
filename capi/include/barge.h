/* libbarge: files of 9P, NFS and virtiofs servers, directories, images, object stores and OCI
 * registries. Written by cbindgen from src/ffi.rs.
 *
 * Functions return 0 or a count, or a negative errno (-ENOENT). NULL, a count larger than SSIZE_MAX
 * and a string that does not end within 64 KiB are -EINVAL. barge_get_error() has the message.
 *
 * Threads may share clients and files, also within calls, and a call blocks its thread only. A close
 * must be the last call with its argument. A process does not use what its parent opened before
 * fork(2). No function changes signals, the umask or the locale. */

#ifndef BARGE_H
#define BARGE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 A source that is open. Threads may share it.
 */
typedef struct barge_client barge_client;

/*
 A file that is open. Threads may share it.
 */
typedef struct barge_file barge_file;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Opens a source: "9p://host:5640/srv", "nfs://host/srv?vers=4.2", "https://host/image.erofs",
 "oci://host/repository:tag", "/srv" and so on. Returns 0 and stores the client, which
 barge_client_close() closes, or returns a negative errno.

 # Safety
 `source` is `NULL` or a string that ends with NUL.
 */
int barge_client_open(const char *source, barge_client **client);

/*
 Closes a client, which no call may use meanwhile or later; its files may be used further. Does
 nothing with NULL.
 */
void barge_client_close(barge_client *client);

/*
 Opens an existing file of a source; flags are O_RDONLY or O_RDWR. The path begins at the root of
 the source. Returns 0 and stores the file, which barge_file_close() closes, or returns a
 negative errno.

 # Safety
 `path` is `NULL` or a string that ends with NUL.
 */
int barge_file_open(const barge_client *client, const char *path, int flags, barge_file **file);

/*
 Returns the size of a file in bytes, or a negative errno.
 */
int64_t barge_file_size(const barge_file *file);

/*
 Reads count bytes at offset, fewer only if the file ends. Returns the number of bytes, or a
 negative errno, after which the contents of the buffer are undefined.

 # Safety
 `buffer` is `NULL` or has `count` bytes that may be written to, and that no other thread uses
 meanwhile.
 */
ssize_t barge_file_pread(const barge_file *file, void *buffer, size_t count, uint64_t offset);

/*
 Writes count bytes at offset. Returns count, or a negative errno, after which some of the bytes
 may have been written.

 # Safety
 `data` is `NULL` or has `count` initialized bytes that no other thread changes meanwhile.
 */
ssize_t barge_file_pwrite(const barge_file *file, const void *data, size_t count, uint64_t offset);

/*
 Makes all data durable that was written to the file, as fdatasync(2). Returns 0 or a negative
 errno.
 */
int barge_file_flush(const barge_file *file);

/*
 Closes a file, which no call may use meanwhile or later. Returns 0, or the negative errno of an
 earlier write that was not reported yet; the file is closed in any case. Does nothing with NULL.
 */
int barge_file_close(barge_file *file);

/*
 Returns the message of the last call that failed in this thread, in one line, or an empty
 string. The next call that fails in this thread replaces it.
 */
const char *barge_get_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BARGE_H */
