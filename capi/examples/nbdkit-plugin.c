/* An nbdkit plugin that serves a file of any source of barge as a disk:
 *
 *     gcc -shared -fPIC -o barge-plugin.so nbdkit-plugin.c $(pkg-config --cflags --libs barge nbdkit)
 *     nbdkit ./barge-plugin.so source=9p://host:5640/srv file=disk.img
 *
 * All connections share one open file, so that a flush of one covers the writes of the others. The
 * file is opened for writing if that is permitted; `nbdkit -r` refuses writes in any case.
 */

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <barge.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

static const char *source, *path;
static barge_client *client;
static barge_file *file;
static int writable;

static int plugin_config(const char *key, const char *value)
{
    if (strcmp(key, "source") == 0)
        source = value;
    else if (strcmp(key, "file") == 0)
        path = value;
    else {
        nbdkit_error("unknown parameter '%s'", key);
        return -1;
    }
    return 0;
}

static int plugin_config_complete(void)
{
    if (source && path)
        return 0;
    nbdkit_error("expected source=SOURCE and file=PATH");
    return -1;
}

/* Reports an error of the library to nbdkit. */
static int fail(const char *what, int64_t result)
{
    nbdkit_error("%s: %s", what, barge_get_error());
    nbdkit_set_error((int)-result);
    return -1;
}

/* Opens the file. nbdkit has forked already, which a client does not outlive. */
static int plugin_after_fork(void)
{
    int result = barge_client_open(source, &client);
    if (result < 0)
        return fail(source, result);
    result = barge_file_open(client, path, O_RDWR, &file);
    writable = result == 0;
    if (result == -EROFS || result == -EACCES || result == -EPERM)
        result = barge_file_open(client, path, O_RDONLY, &file);
    return result < 0 ? fail(path, result) : 0;
}

static void plugin_cleanup(void)
{
    int result = barge_file_close(file);
    if (result < 0)
        fail(path, result);
    barge_client_close(client);
}

static void *plugin_open(int readonly)
{
    return file;
}

static int64_t plugin_get_size(void *handle)
{
    int64_t size = barge_file_size(handle);
    return size < 0 ? fail(path, size) : size;
}

static int plugin_can_write(void *handle)
{
    return writable;
}

static int plugin_can_multi_conn(void *handle)
{
    return 1;
}

static int plugin_pread(void *handle, void *buffer, uint32_t count, uint64_t offset, uint32_t flags)
{
    ssize_t got = barge_file_pread(handle, buffer, count, offset);
    if (got < 0)
        return fail("read", got);
    if ((size_t)got < count) {
        nbdkit_error("read: the file is shorter than it was");
        nbdkit_set_error(EIO);
        return -1;
    }
    return 0;
}

static int plugin_pwrite(void *handle, const void *data, uint32_t count, uint64_t offset, uint32_t flags)
{
    ssize_t written = barge_file_pwrite(handle, data, count, offset);
    return written < 0 ? fail("write", written) : 0;
}

static int plugin_flush(void *handle, uint32_t flags)
{
    int result = barge_file_flush(handle);
    return result < 0 ? fail("flush", result) : 0;
}

static struct nbdkit_plugin plugin = {
    .name = "barge",
    .longname = "barge, files of any source",
    .description = "Serves a file of a 9P or NFS server, a directory or an image as a disk",
    .config = plugin_config,
    .config_complete = plugin_config_complete,
    .config_help = "source=SOURCE  (required) as of the program barge: 9p://HOST:PORT/PATH\n"
                   "file=PATH      (required) the path of the file in the source",
    .after_fork = plugin_after_fork,
    .cleanup = plugin_cleanup,
    .open = plugin_open,
    .get_size = plugin_get_size,
    .can_write = plugin_can_write,
    .can_multi_conn = plugin_can_multi_conn,
    .pread = plugin_pread,
    .pwrite = plugin_pwrite,
    .flush = plugin_flush,
};

NBDKIT_REGISTER_PLUGIN(plugin)
