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
/* The server did it, and its answer was lost. */
#define FAIL_AFTER(error, call) do { int e = (error); if (e) { \
	if (e == ENOENT || e == EEXIST) { (void)!call; } errno = e; return -1; } } while (0)

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

#define MODE(flags, last) mode_t mode = 0; if ((flags) & (O_CREAT | __O_TMPFILE)) { \
	va_list list; va_start(list, last); mode = va_arg(list, mode_t); va_end(list); }
#define KIND(flags) ((flags) & O_CREAT ? "create" : (flags) & O_DIRECTORY ? "opendir" : "open")

int open(const char *path, int flags, ...)
{
	MODE(flags, flags)
	FAIL(at(KIND(flags), AT_FDCWD, path), -1);
	return REAL(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...)
{
	MODE(flags, flags)
	FAIL(at(KIND(flags), AT_FDCWD, path), -1);
	return REAL(open64)(path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...)
{
	MODE(flags, flags)
	FAIL(at(KIND(flags), folder, path), -1);
	return REAL(openat)(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...)
{
	MODE(flags, flags)
	FAIL(at(KIND(flags), folder, path), -1);
	return REAL(openat64)(folder, path, flags, mode);
}
int creat(const char *path, mode_t mode) { FAIL(at("create", AT_FDCWD, path), -1); return REAL(creat)(path, mode); }
int creat64(const char *path, mode_t mode) { FAIL(at("create", AT_FDCWD, path), -1); return REAL(creat64)(path, mode); }
FILE *fopen(const char *path, const char *how)
{
	FAIL(at(how[0] == 'r' ? "open" : "create", AT_FDCWD, path), NULL);
	return REAL(fopen)(path, how);
}
FILE *fopen64(const char *path, const char *how)
{
	FAIL(at(how[0] == 'r' ? "open" : "create", AT_FDCWD, path), NULL);
	return REAL(fopen64)(path, how);
}

ssize_t read(int file, void *to, size_t size) { FAIL(of("read", file), -1); return REAL(read)(file, to, size); }
ssize_t pread(int file, void *to, size_t size, off_t from)
{
	FAIL(of("read", file), -1);
	return REAL(pread)(file, to, size, from);
}
ssize_t pread64(int file, void *to, size_t size, off64_t from)
{
	FAIL(of("read", file), -1);
	return REAL(pread64)(file, to, size, from);
}
ssize_t readv(int file, const struct iovec *to, int count) { FAIL(of("read", file), -1); return REAL(readv)(file, to, count); }
ssize_t preadv(int file, const struct iovec *to, int count, off_t from)
{
	FAIL(of("read", file), -1);
	return REAL(preadv)(file, to, count, from);
}
ssize_t preadv64(int file, const struct iovec *to, int count, off64_t from)
{
	FAIL(of("read", file), -1);
	return REAL(preadv64)(file, to, count, from);
}
ssize_t preadv64v2(int file, const struct iovec *to, int count, off64_t from, int flags)
{
	FAIL(of("read", file), -1);
	return REAL(preadv64v2)(file, to, count, from, flags);
}
ssize_t write(int file, const void *from, size_t size) { FAIL(of("write", file), -1); return REAL(write)(file, from, size); }
ssize_t pwrite(int file, const void *from, size_t size, off_t to)
{
	FAIL(of("write", file), -1);
	return REAL(pwrite)(file, from, size, to);
}
ssize_t pwrite64(int file, const void *from, size_t size, off64_t to)
{
	FAIL(of("write", file), -1);
	return REAL(pwrite64)(file, from, size, to);
}
ssize_t writev(int file, const struct iovec *from, int count)
{
	FAIL(of("write", file), -1);
	return REAL(writev)(file, from, count);
}
ssize_t pwritev64(int file, const struct iovec *from, int count, off64_t to)
{
	FAIL(of("write", file), -1);
	return REAL(pwritev64)(file, from, count, to);
}
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
int fsync(int file) { FAIL(of_sync(file), -1); return REAL(fsync)(file); }
int fdatasync(int file) { FAIL(of_sync(file), -1); return REAL(fdatasync)(file); }
int ftruncate(int file, off_t size) { FAIL(of("truncate", file), -1); return REAL(ftruncate)(file, size); }
int ftruncate64(int file, off64_t size) { FAIL(of("truncate", file), -1); return REAL(ftruncate64)(file, size); }
int flock(int file, int how) { FAIL(of("lock", file), -1); return REAL(flock)(file, how); }
void *mmap(void *place, size_t size, int rights, int flags, int file, off_t from)
{
	FAIL(of("mmap", file), MAP_FAILED);
	return REAL(mmap)(place, size, rights, flags, file, from);
}
void *mmap64(void *place, size_t size, int rights, int flags, int file, off64_t from)
{
	FAIL(of("mmap", file), MAP_FAILED);
	return REAL(mmap64)(place, size, rights, flags, file, from);
}
ssize_t sendfile(int to, int from, off_t *start, size_t size) { FAIL(of("sendfile", to), -1); return REAL(sendfile)(to, from, start, size); }
ssize_t sendfile64(int to, int from, off64_t *start, size_t size)
{
	FAIL(of("sendfile", to), -1);
	return REAL(sendfile64)(to, from, start, size);
}
ssize_t copy_file_range(int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags)
{
	FAIL(of("sendfile", to), -1);
	return REAL(copy_file_range)(from, a, to, b, size, flags);
}

int rename(const char *from, const char *to)
{
	FAIL_AFTER(at("rename", AT_FDCWD, to), REAL(rename)(from, to));
	return REAL(rename)(from, to);
}
int renameat(int a, const char *from, int b, const char *to)
{
	FAIL_AFTER(at("rename", b, to), REAL(renameat)(a, from, b, to));
	return REAL(renameat)(a, from, b, to);
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
	FAIL_AFTER(at("rename", b, to), REAL(renameat2)(a, from, b, to, flags));
	return REAL(renameat2)(a, from, b, to, flags);
}
int link(const char *from, const char *to) { FAIL_AFTER(at("link", AT_FDCWD, to), REAL(link)(from, to)); return REAL(link)(from, to); }
int linkat(int a, const char *from, int b, const char *to, int flags)
{
	FAIL_AFTER(at("link", b, to), REAL(linkat)(a, from, b, to, flags));
	return REAL(linkat)(a, from, b, to, flags);
}
int unlink(const char *path) { FAIL_AFTER(at("unlink", AT_FDCWD, path), REAL(unlink)(path)); return REAL(unlink)(path); }
int unlinkat(int folder, const char *path, int flags)
{
	FAIL_AFTER(at(flags & AT_REMOVEDIR ? "rmdir" : "unlink", folder, path), REAL(unlinkat)(folder, path, flags));
	return REAL(unlinkat)(folder, path, flags);
}
int rmdir(const char *path) { FAIL_AFTER(at("rmdir", AT_FDCWD, path), REAL(rmdir)(path)); return REAL(rmdir)(path); }
int mkdir(const char *path, mode_t mode) { FAIL_AFTER(at("mkdir", AT_FDCWD, path), REAL(mkdir)(path, mode)); return REAL(mkdir)(path, mode); }
int mkdirat(int folder, const char *path, mode_t mode)
{
	FAIL_AFTER(at("mkdir", folder, path), REAL(mkdirat)(folder, path, mode));
	return REAL(mkdirat)(folder, path, mode);
}

int stat(const char *path, struct stat *to) { FAIL(at("stat", AT_FDCWD, path), -1); return REAL(stat)(path, to); }
int stat64(const char *path, struct stat64 *to) { FAIL(at("stat", AT_FDCWD, path), -1); return REAL(stat64)(path, to); }
int lstat(const char *path, struct stat *to) { FAIL(at("stat", AT_FDCWD, path), -1); return REAL(lstat)(path, to); }
int lstat64(const char *path, struct stat64 *to) { FAIL(at("stat", AT_FDCWD, path), -1); return REAL(lstat64)(path, to); }
int fstat(int file, struct stat *to) { FAIL(of("fstat", file), -1); return REAL(fstat)(file, to); }
int fstat64(int file, struct stat64 *to) { FAIL(of("fstat", file), -1); return REAL(fstat64)(file, to); }
int fstatat(int folder, const char *path, struct stat *to, int flags)
{
	FAIL(at("stat", folder, path), -1);
	return REAL(fstatat)(folder, path, to, flags);
}
int fstatat64(int folder, const char *path, struct stat64 *to, int flags)
{
	FAIL(at("stat", folder, path), -1);
	return REAL(fstatat64)(folder, path, to, flags);
}
int statx(int folder, const char *path, int flags, unsigned mask, struct statx *to)
{
	FAIL(at("stat", folder, path), -1);
	return REAL(statx)(folder, path, flags, mask, to);
}
int access(const char *path, int mode) { FAIL(at("stat", AT_FDCWD, path), -1); return REAL(access)(path, mode); }
int faccessat(int folder, const char *path, int mode, int flags)
{
	FAIL(at("stat", folder, path), -1);
	return REAL(faccessat)(folder, path, mode, flags);
}
DIR *opendir(const char *path) { FAIL(at("opendir", AT_FDCWD, path), NULL); return REAL(opendir)(path); }
DIR *fdopendir(int file) { FAIL(of("opendir", file), NULL); return REAL(fdopendir)(file); }
struct dirent *readdir(DIR *folder) { FAIL(of("readdir", dirfd(folder)), NULL); return REAL(readdir)(folder); }
struct dirent64 *readdir64(DIR *folder) { FAIL(of("readdir", dirfd(folder)), NULL); return REAL(readdir64)(folder); }
int utimensat(int folder, const char *path, const struct timespec to[2], int flags)
{
	FAIL(at("utime", folder, path), -1);
	return REAL(utimensat)(folder, path, to, flags);
}
int futimens(int file, const struct timespec to[2]) { FAIL(of("utime", file), -1); return REAL(futimens)(file, to); }
int chmod(const char *path, mode_t mode) { FAIL(at("chmod", AT_FDCWD, path), -1); return REAL(chmod)(path, mode); }
int fchmod(int file, mode_t mode) { FAIL(of("chmod", file), -1); return REAL(fchmod)(file, mode); }
int fchmodat(int folder, const char *path, mode_t mode, int flags)
{
	FAIL(at("chmod", folder, path), -1);
	return REAL(fchmodat)(folder, path, mode, flags);
}
int statvfs(const char *path, struct statvfs *to) { FAIL(at("statvfs", AT_FDCWD, path), -1); return REAL(statvfs)(path, to); }
int statvfs64(const char *path, struct statvfs64 *to) { FAIL(at("statvfs", AT_FDCWD, path), -1); return REAL(statvfs64)(path, to); }
int fstatvfs(int file, struct statvfs *to) { FAIL(of("statvfs", file), -1); return REAL(fstatvfs)(file, to); }
int fstatvfs64(int file, struct statvfs64 *to) { FAIL(of("statvfs", file), -1); return REAL(fstatvfs64)(file, to); }
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
