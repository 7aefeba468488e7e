/* Checks the functions of barge.h: api SOURCE, which has file (3 bytes "abc"), dir and big (1 MiB).
 * Closes with 'N passed, N failed, 0 skipped'. */

#include <barge.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;

#define CHECK(condition) \
    do { \
        if (condition) \
            passed++; \
        else { \
            failed++; \
            printf("FAILED: line %d: %s (last error: %s)\n", __LINE__, #condition, barge_get_error()); \
        } \
    } while (0)

#define BIG (1 << 20)
#define THREADS 8

static void bad_arguments(const char *source)
{
    barge_client *client = NULL;
    barge_file *file = NULL;
    char byte = 0;
    size_t huge = (size_t)SSIZE_MAX + 1;

    CHECK(barge_client_open(NULL, &client) == -EINVAL);
    CHECK(strstr(barge_get_error(), "NULL"));
    CHECK(barge_client_open(source, NULL) == -EINVAL);
    CHECK(barge_client_open("", &client) == -EINVAL);
    CHECK(barge_client_open("gopher://host", &client) == -EINVAL);
    CHECK(strstr(barge_get_error(), "got scheme 'gopher'"));
    CHECK(barge_client_open("/\xff", &client) == -EINVAL);
    CHECK(barge_client_open("/does/not/exist", &client) == -ENOENT);
    CHECK(barge_client_open("9p://127.0.0.1:1?retry=0", &client) == -ECONNREFUSED);
    CHECK(client == NULL);

    char *endless = malloc(65536);
    memset(endless, 'x', 65536);
    CHECK(barge_client_open(endless, &client) == -EINVAL);

    CHECK(barge_client_open(source, &client) == 0);
    CHECK(barge_file_open(NULL, "file", O_RDONLY, &file) == -EINVAL);
    CHECK(barge_file_open(client, NULL, O_RDONLY, &file) == -EINVAL);
    CHECK(barge_file_open(client, endless, O_RDONLY, &file) == -EINVAL);
    CHECK(barge_file_open(client, "file", O_RDONLY, NULL) == -EINVAL);
    CHECK(barge_file_open(client, "file", O_WRONLY, &file) == -EINVAL);
    CHECK(barge_file_open(client, "file", O_RDWR | O_CREAT, &file) == -EINVAL);
    CHECK(barge_file_open(client, "none", O_RDONLY, &file) == -ENOENT);
    CHECK(strcmp(barge_get_error(), "No such file or directory") == 0);
    CHECK(barge_file_open(client, "file/x", O_RDONLY, &file) == -ENOTDIR);
    CHECK(barge_file_open(client, "dir", O_RDONLY, &file) == -EISDIR);
    CHECK(barge_file_open(client, "dir", O_RDWR, &file) == -EISDIR);
    CHECK(file == NULL);
    free(endless);

    CHECK(barge_file_size(NULL) == -EINVAL);
    CHECK(barge_file_pread(NULL, &byte, 1, 0) == -EINVAL);
    CHECK(barge_file_pwrite(NULL, &byte, 1, 0) == -EINVAL);
    CHECK(barge_file_flush(NULL) == -EINVAL);
    CHECK(barge_file_close(NULL) == 0);
    barge_client_close(NULL);

    CHECK(barge_file_open(client, "file", O_RDONLY, &file) == 0);
    CHECK(barge_file_pread(file, NULL, 1, 0) == -EINVAL);
    CHECK(barge_file_pread(file, NULL, 0, 0) == 0);
    CHECK(barge_file_pread(file, &byte, huge, 0) == -EINVAL);
    CHECK(barge_file_pwrite(file, NULL, 1, 0) == -EINVAL);
    CHECK(barge_file_pwrite(file, &byte, huge, 0) == -EINVAL);
    CHECK(barge_file_pread(file, &byte, 1, UINT64_MAX) == -EINVAL);
    CHECK(barge_file_pread(file, &byte, 1, INT64_MAX) == -EINVAL);
    CHECK(barge_file_pwrite(file, &byte, 1, 0) < 0);
    CHECK(barge_file_close(file) == 0);
    barge_client_close(client);
}

static void reads_and_writes(const char *source)
{
    barge_client *client;
    barge_file *file;
    char buffer[16] = "................";

    CHECK(barge_client_open(source, &client) == 0);
    CHECK(barge_file_open(client, "/file", O_RDWR, &file) == 0);
    /* A file outlives its client. */
    barge_client_close(client);
    CHECK(barge_file_size(file) == 3);
    CHECK(barge_file_pread(file, buffer, sizeof buffer, 0) == 3 && memcmp(buffer, "abc", 3) == 0);
    CHECK(barge_file_pread(file, buffer, 2, 1) == 2 && memcmp(buffer, "bc", 2) == 0);
    CHECK(barge_file_pread(file, buffer, 1, 3) == 0);
    CHECK(barge_file_pwrite(file, "XYZ", 3, 2) == 3);
    CHECK(barge_file_pwrite(file, "", 0, 100) == 0);
    CHECK(barge_file_flush(file) == 0);
    CHECK(barge_file_size(file) == 5);
    CHECK(barge_file_pread(file, buffer, sizeof buffer, 0) == 5 && memcmp(buffer, "abXYZ", 5) == 0);
    CHECK(barge_file_close(file) == 0);
}

struct job {
    barge_file *file;
    int number;
    int wrong;
};

static void *work(void *argument)
{
    struct job *job = argument;
    size_t part = BIG / THREADS;
    char *data = malloc(part), *back = malloc(part);

    memset(data, 'a' + job->number, part);
    for (int turn = 0; turn < 4; turn++) {
        uint64_t at = job->number * part;
        job->wrong |= barge_file_pwrite(job->file, data, part, at) != (ssize_t)part;
        job->wrong |= barge_file_pread(job->file, back, part, at) != (ssize_t)part;
        job->wrong |= memcmp(data, back, part) != 0;
        job->wrong |= barge_file_flush(job->file) != 0;
    }
    /* Messages are of the thread. */
    job->wrong |= barge_get_error()[0] != 0;
    job->wrong |= barge_file_flush(NULL) != -EINVAL || !barge_get_error()[0];
    free(data);
    free(back);
    return NULL;
}

static void threads(const char *source)
{
    barge_client *client;
    barge_file *file;
    pthread_t ids[THREADS];
    struct job jobs[THREADS];

    CHECK(barge_client_open(source, &client) == 0);
    CHECK(barge_file_open(client, "big", O_RDWR, &file) == 0);
    CHECK(barge_file_size(file) == BIG);
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){ file, i, 0 };
        if (pthread_create(&ids[i], NULL, work, &jobs[i]) != 0)
            abort();
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(ids[i], NULL);
        CHECK(!jobs[i].wrong);
    }
    CHECK(barge_file_close(file) == 0);
    barge_client_close(client);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    bad_arguments(argv[1]);
    reads_and_writes(argv[1]);
    threads(argv[1]);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
