/* Preloaded into a test's process: counts the file operations below one folder, or lets one of them fail once.

   An operation is named by its kind, its path below the folder with what differs between runs taken out, and how often
   this pair has occurred: faults_begin(). See faults.py. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MOST 65536

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char top[PATH_MAX];
static int begun, code, fired;
static unsigned nth;
static char wanted[PATH_MAX];
static struct { char *name; unsigned count; } seen[MOST];

/* Take out what differs between runs: process and token of temporary files and folders, the time of event files. */
static void plain(char *key)
{
	char *name = strrchr(key, '/');
	name = name ? name + 1 : key;
	size_t length = strlen(name);
	char *place;

	if (name[0] == '.' && length > 5 && !strcmp(name + length - 5, ".part")) {
		name[length - 5] = 0;
		for (int part = 0; part < 2 && (place = strrchr(name, '.')) && place != name; part++)
			*place = 0;
		strcat(name, ".part");
	}
	if ((place = strstr(key, "tfevents")))
		place[8] = 0;
	for (place = key; (place = strstr(place, "tmp")); place += 3)
		if ((place == key || place[-1] == '/') && strcspn(place, "/") == 11)
			memcpy(place, "tmp########", 11);
}

static unsigned long hashed(const char *text)
{
	unsigned long value = 5381;
	while (*text)
		value = 33 * value + (unsigned char)*text++;
	return value;
}

/* Count an operation; the errno with which it has to fail, or 0. */
static int strike(const char *kind, const char *path)
{
	char name[PATH_MAX + 32];
	size_t length = strlen(top);
	int error = 0;

	if (!begun || strncmp(path, top, length))
		return 0;
	int head = snprintf(name, sizeof name, "%s ", kind);
	snprintf(name + head, sizeof name - head, "%s", path + length);
	plain(name + head);
	pthread_mutex_lock(&lock);
	unsigned long place = hashed(name) % MOST;
	while (seen[place].name && strcmp(seen[place].name, name))
		place = (place + 1) % MOST;
	if (!seen[place].name)
		seen[place].name = strdup(name);
	seen[place].count++;
	if (code && !fired && seen[place].count == nth && !strcmp(name, wanted)) {
		fired = 1;
		error = code;
	}
	pthread_mutex_unlock(&lock);
	return error;
}

static int at(const char *kind, int folder, const char *path)
{
	char place[64], base[PATH_MAX], whole[2 * PATH_MAX];
	int before = errno, error;

	if (!begun || !path)
		return 0;
	if (path[0] == '/') {
		error = strike(kind, path);
	} else {
		if (folder == AT_FDCWD)
			strcpy(place, "/proc/self/cwd");
		else
			snprintf(place, sizeof place, "/proc/self/fd/%d", folder);
		ssize_t length = readlink(place, base, sizeof base - 1);
		if (length < 0)
			length = 0;
		base[length] = 0;
		snprintf(whole, sizeof whole, path[0] ? "%s/%s" : "%s%s", base, path);
		error = strike(kind, whole);
	}
	errno = before;
	return error;
}

static int of(const char *kind, int file) { return file < 0 ? 0 : at(kind, file, ""); }

#define FAIL(error, value) do { int e = (error); if (e) { errno = e; return value; } } while (0)

void faults_begin(const char *folder, const char *name, unsigned count, int number)
{
	snprintf(top, sizeof top, "%s/", folder);
	snprintf(wanted, sizeof wanted, "%s", name);
	nth = count;
	code = number;
	fired = 0;
	begun = 1;
}
int faults_fired(void) { return fired; }
void faults_end(const char *path)
{
	begun = 0;
	FILE *file = *path ? REAL(fopen)(path, "w") : NULL;
	for (int place = 0; file && place < MOST; place++)
		if (seen[place].name)
			fprintf(file, "%u %s\n", seen[place].count, seen[place].name);
	if (file)
		fclose(file);
}

#define KIND(flags) ((flags) & O_CREAT ? "create" : (flags) & O_DIRECTORY ? "opendir" : "open")
#define KIND_OF(how) ((how)[0] == 'r' ? "open" : "create")
#define OPEN(name, base, parameters, arguments) \
	int name parameters { \
		mode_t mode = 0; \
		if (flags & (O_CREAT | __O_TMPFILE)) { \
			va_list list; va_start(list, flags); mode = va_arg(list, mode_t); va_end(list); \
		} \
		FAIL(at(KIND(flags), base, path), -1); \
		return REAL(name) arguments; \
	}
OPEN(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPEN(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPEN(openat, folder, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
OPEN(openat64, folder, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))

/* What fails is not done, and returns bad. */
#define ON(type, name, parameters, arguments, error, bad) \
	type name parameters { FAIL(error, bad); return REAL(name) arguments; }
ON(int, creat, (const char *path, mode_t mode), (path, mode), at("create", AT_FDCWD, path), -1)
ON(int, creat64, (const char *path, mode_t mode), (path, mode), at("create", AT_FDCWD, path), -1)
ON(FILE *, fopen, (const char *path, const char *how), (path, how), at(KIND_OF(how), AT_FDCWD, path), NULL)
ON(FILE *, fopen64, (const char *path, const char *how), (path, how), at(KIND_OF(how), AT_FDCWD, path), NULL)

ON(ssize_t, read, (int file, void *to, size_t size), (file, to, size), of("read", file), -1)
ON(ssize_t, pread, (int file, void *to, size_t size, off_t from), (file, to, size, from), of("read", file), -1)
ON(ssize_t, pread64, (int file, void *to, size_t size, off64_t from), (file, to, size, from), of("read", file), -1)
ON(ssize_t, readv, (int file, const struct iovec *to, int count), (file, to, count), of("read", file), -1)
ON(ssize_t, preadv, (int file, const struct iovec *to, int count, off_t from), (file, to, count, from),
   of("read", file), -1)
ON(ssize_t, preadv64, (int file, const struct iovec *to, int count, off64_t from), (file, to, count, from),
   of("read", file), -1)
ON(ssize_t, preadv64v2, (int file, const struct iovec *to, int count, off64_t from, int flags),
   (file, to, count, from, flags), of("read", file), -1)
ON(ssize_t, write, (int file, const void *from, size_t size), (file, from, size), of("write", file), -1)
ON(ssize_t, pwrite, (int file, const void *from, size_t size, off_t to), (file, from, size, to), of("write", file), -1)
ON(ssize_t, pwrite64, (int file, const void *from, size_t size, off64_t to), (file, from, size, to),
   of("write", file), -1)
ON(ssize_t, writev, (int file, const struct iovec *from, int count), (file, from, count), of("write", file), -1)
ON(ssize_t, pwritev64, (int file, const struct iovec *from, int count, off64_t to), (file, from, count, to),
   of("write", file), -1)
/* A close that fails has closed. */
int close(int file)
{
	int flags = begun ? fcntl(file, F_GETFL) : 0;
	int error = of((flags & O_ACCMODE) == O_RDONLY ? "closeread" : "close", file), done = REAL(close)(file);
	FAIL(error, -1);
	return done;
}
static int of_sync(int file)
{
	struct stat found;
	return of(!REAL(fstat)(file, &found) && S_ISDIR(found.st_mode) ? "fsyncdir" : "fsync", file);
}
ON(int, fsync, (int file), (file), of_sync(file), -1)
ON(int, fdatasync, (int file), (file), of_sync(file), -1)
ON(int, ftruncate, (int file, off_t size), (file, size), of("truncate", file), -1)
ON(int, ftruncate64, (int file, off64_t size), (file, size), of("truncate", file), -1)
ON(int, flock, (int file, int how), (file, how), of("lock", file), -1)
ON(void *, mmap, (void *place, size_t size, int rights, int flags, int file, off_t from),
   (place, size, rights, flags, file, from), of("mmap", file), MAP_FAILED)
ON(void *, mmap64, (void *place, size_t size, int rights, int flags, int file, off64_t from),
   (place, size, rights, flags, file, from), of("mmap", file), MAP_FAILED)
ON(ssize_t, sendfile, (int to, int from, off_t *start, size_t size), (to, from, start, size), of("sendfile", to), -1)
ON(ssize_t, sendfile64, (int to, int from, off64_t *start, size_t size), (to, from, start, size),
   of("sendfile", to), -1)
ON(ssize_t, copy_file_range, (int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags),
   (from, a, to, b, size, flags), of("sendfile", to), -1)

/* With ENOENT or EEXIST the server did it, and its answer was lost. */
#define ON_NAME(name, parameters, arguments, error) \
	int name parameters { \
		int number = (error); \
		if (number == ENOENT || number == EEXIST) \
			(void)!REAL(name) arguments; \
		FAIL(number, -1); \
		return REAL(name) arguments; \
	}
ON_NAME(rename, (const char *from, const char *to), (from, to), at("rename", AT_FDCWD, to))
ON_NAME(renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), at("rename", b, to))
ON_NAME(renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags),
        at("rename", b, to))
ON_NAME(link, (const char *from, const char *to), (from, to), at("link", AT_FDCWD, to))
ON_NAME(linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags), at("link", b, to))
ON_NAME(unlink, (const char *path), (path), at("unlink", AT_FDCWD, path))
ON_NAME(unlinkat, (int folder, const char *path, int flags), (folder, path, flags),
        at(flags & AT_REMOVEDIR ? "rmdir" : "unlink", folder, path))
ON_NAME(rmdir, (const char *path), (path), at("rmdir", AT_FDCWD, path))
ON_NAME(mkdir, (const char *path, mode_t mode), (path, mode), at("mkdir", AT_FDCWD, path))
ON_NAME(mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode), at("mkdir", folder, path))

ON(int, stat, (const char *path, struct stat *to), (path, to), at("stat", AT_FDCWD, path), -1)
ON(int, stat64, (const char *path, struct stat64 *to), (path, to), at("stat", AT_FDCWD, path), -1)
ON(int, lstat, (const char *path, struct stat *to), (path, to), at("stat", AT_FDCWD, path), -1)
ON(int, lstat64, (const char *path, struct stat64 *to), (path, to), at("stat", AT_FDCWD, path), -1)
ON(int, fstat, (int file, struct stat *to), (file, to), of("fstat", file), -1)
ON(int, fstat64, (int file, struct stat64 *to), (file, to), of("fstat", file), -1)
ON(int, fstatat, (int folder, const char *path, struct stat *to, int flags), (folder, path, to, flags),
   at("stat", folder, path), -1)
ON(int, fstatat64, (int folder, const char *path, struct stat64 *to, int flags), (folder, path, to, flags),
   at("stat", folder, path), -1)
ON(int, statx, (int folder, const char *path, int flags, unsigned mask, struct statx *to),
   (folder, path, flags, mask, to), at("stat", folder, path), -1)
ON(int, access, (const char *path, int mode), (path, mode), at("stat", AT_FDCWD, path), -1)
ON(int, faccessat, (int folder, const char *path, int mode, int flags), (folder, path, mode, flags),
   at("stat", folder, path), -1)
ON(DIR *, opendir, (const char *path), (path), at("opendir", AT_FDCWD, path), NULL)
ON(DIR *, fdopendir, (int file), (file), of("opendir", file), NULL)
ON(struct dirent *, readdir, (DIR *folder), (folder), of("readdir", dirfd(folder)), NULL)
ON(struct dirent64 *, readdir64, (DIR *folder), (folder), of("readdir", dirfd(folder)), NULL)
ON(int, utimensat, (int folder, const char *path, const struct timespec to[2], int flags), (folder, path, to, flags),
   at("utime", folder, path), -1)
ON(int, futimens, (int file, const struct timespec to[2]), (file, to), of("utime", file), -1)
ON(int, chmod, (const char *path, mode_t mode), (path, mode), at("chmod", AT_FDCWD, path), -1)
ON(int, fchmod, (int file, mode_t mode), (file, mode), of("chmod", file), -1)
ON(int, fchmodat, (int folder, const char *path, mode_t mode, int flags), (folder, path, mode, flags),
   at("chmod", folder, path), -1)
ON(int, statvfs, (const char *path, struct statvfs *to), (path, to), at("statvfs", AT_FDCWD, path), -1)
ON(int, statvfs64, (const char *path, struct statvfs64 *to), (path, to), at("statvfs", AT_FDCWD, path), -1)
ON(int, fstatvfs, (int file, struct statvfs *to), (file, to), of("statvfs", file), -1)
ON(int, fstatvfs64, (int file, struct statvfs64 *to), (file, to), of("statvfs", file), -1)
int fcntl64(int file, int what, ...)
{
	va_list list;
	va_start(list, what);
	void *argument = va_arg(list, void *);
	va_end(list);
	if (what == F_SETLK || what == F_SETLKW)
		FAIL(of("lock", file), -1);
	return REAL(fcntl64)(file, what, argument);
}
