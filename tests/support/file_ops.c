/* Preloaded into every process of a test: before a file operation that decides what is on the disk, ask the
   test that listens on the abstract socket FILE_OPS, and go on when it answers. See file_ops.py. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int channel = -1;
static pid_t owner;

static void join_test(const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t length = strnlen(name, sizeof address.sun_path - 2);

	memcpy(address.sun_path + 1, name, length);
	owner = getpid(); /* a fork speaks for itself */
	channel = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (connect(channel, (struct sockaddr *)&address,
		    offsetof(struct sockaddr_un, sun_path) + 1 + length)) {
		close(channel);
		channel = -1;
	}
}

/* One operation: its name, the open file that it is about (or -1), and its path as the process gave it. */
static void ask(const char *what, int file, const char *path)
{
	const char *name = getenv("FILE_OPS");
	char text[PATH_MAX + 64];
	int before = errno;

	if (!name)
		return;
	pthread_mutex_lock(&lock);
	if (owner != getpid())
		join_test(name);
	int length = snprintf(text, sizeof text, "%s %d %s", what, file, path);
	if (channel >= 0 && send(channel, text, length, MSG_NOSIGNAL) == length)
		(void)!recv(channel, text, 1, 0);
	pthread_mutex_unlock(&lock);
	errno = before;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fsync(int file) { ask("fsync", file, ""); return REAL(fsync)(file); }
int fdatasync(int file) { ask("fsync", file, ""); return REAL(fdatasync)(file); }
int unlink(const char *path) { ask("unlink", -1, path); return REAL(unlink)(path); }
int rmdir(const char *path) { ask("rmdir", -1, path); return REAL(rmdir)(path); }
int mkdir(const char *path, mode_t mode) { ask("mkdir", -1, path); return REAL(mkdir)(path, mode); }
int unlinkat(int folder, const char *path, int flags)
{
	ask(flags & AT_REMOVEDIR ? "rmdir" : "unlink", -1, path);
	return REAL(unlinkat)(folder, path, flags);
}
int mkdirat(int folder, const char *path, mode_t mode)
{
	ask("mkdir", -1, path);
	return REAL(mkdirat)(folder, path, mode);
}
int rename(const char *from, const char *to) { ask("rename", -1, to); return REAL(rename)(from, to); }
int renameat(int a, const char *from, int b, const char *to)
{
	ask("rename", -1, to);
	return REAL(renameat)(a, from, b, to);
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
	ask("rename", -1, to);
	return REAL(renameat2)(a, from, b, to, flags);
}
int link(const char *from, const char *to) { ask("link", -1, to); return REAL(link)(from, to); }
int linkat(int a, const char *from, int b, const char *to, int flags)
{
	ask("link", -1, to);
	return REAL(linkat)(a, from, b, to, flags);
}
