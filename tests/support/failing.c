/* Fails one operation of the C library with one errno: LD_PRELOAD this, see failing.py.
   FAIL=operation:errno:nth:path - the nth (1, 2, ...; 0: each) such operation on a path that holds the text;
   a text that ends with $ is the end of the path. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int holds(const char *path, const char *text) {
    size_t length = strlen(text), end = strlen(path);
    if (!length || text[length - 1] != '$') return strstr(path, text) != NULL;
    return end >= length - 1 && !strncmp(path + end - (length - 1), text, length - 1); /* $: its end */
}

static int wanted(const char *operation, const char *path) {
    static int seen;
    static char before[4096]; /* a process that sets FAIL again counts from the beginning */
    char name[32], place[3000] = "";
    int number, nth;
    const char *asked = getenv("FAIL");
    if (!asked || sscanf(asked, "%31[^:]:%d:%d:%2999s", name, &number, &nth, place) < 3) return 0;
    if (strncmp(before, asked, sizeof before - 1)) {
        strncpy(before, asked, sizeof before - 1);
        seen = 0;
    }
    if (strcmp(name, operation) || !path || !holds(path, place)) return 0;
    if (nth && __sync_add_and_fetch(&seen, 1) != nth) return 0;
    errno = number;
    return 1;
}

static int of_file(const char *operation, int file) {
    char link[64], path[4096];
    if (!getenv("FAIL")) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return wanted(operation, path);
}

#define NEXT(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))
#define OPEN(name)                                                     \
    int name(const char *path, int flags, ...) {                       \
        va_list more;                                                  \
        va_start(more, flags);                                         \
        mode_t mode = va_arg(more, mode_t);                            \
        va_end(more);                                                  \
        if (wanted("open", path)) return -1;                           \
        return NEXT(name)(path, flags, mode);                          \
    }
OPEN(open)
OPEN(open64)
#define ON_FILE(name, operation, kind, arguments, values)              \
    kind name arguments {                                              \
        if (of_file(operation, file)) return -1;                       \
        return NEXT(name) values;                                      \
    }
ON_FILE(read, "read", ssize_t, (int file, void *to, size_t size), (file, to, size))
ON_FILE(pread, "read", ssize_t, (int file, void *to, size_t size, off_t at), (file, to, size, at))
ON_FILE(pread64, "read", ssize_t, (int file, void *to, size_t size, off64_t at), (file, to, size, at))
ON_FILE(write, "write", ssize_t, (int file, const void *from, size_t size), (file, from, size))
ON_FILE(fsync, "fsync", int, (int file), (file))
int rename(const char *from, const char *to) {
    if (wanted("rename", to)) return -1;
    int done = NEXT(rename)(from, to);
    if (!done && wanted("renamed", to)) return -1; /* done, but its answer was lost */
    return done;
}
