/* Preloaded into every process of a test: below the folder HIDDEN_NAMES, a file that is deleted or replaced while
   a process has it open gets a hidden name beside it, as on NFS, and cannot be deleted under that. The test deletes
   it once it is closed. See hidden_names.py. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* The whole path; 0 unless it is below the folder. */
static int whole(int folder, const char *path, char *found)
{
	const char *top = getenv("HIDDEN_NAMES");
	char place[64], base[PATH_MAX] = "";
	ssize_t length = 0;

	if (!top)
		return 0;
	if (path[0] != '/') {
		if (folder == AT_FDCWD)
			strcpy(place, "/proc/self/cwd");
		else
			snprintf(place, sizeof place, "/proc/self/fd/%d", folder);
		length = readlink(place, base, sizeof base - 2);
		if (length < 0)
			return 0;
		base[length] = '/';
		base[length + 1] = 0;
	}
	if (snprintf(found, PATH_MAX, "%s%s", base, path) >= PATH_MAX)
		return 0;
	return !strncmp(found, top, strlen(top));
}

static int has_open(const char *process, const struct stat *file)
{
	char place[300], link[600];
	struct dirent *entry;
	struct stat other;
	int found = 0;

	snprintf(place, sizeof place, "/proc/%s/fd", process);
	DIR *handles = opendir(place);
	while (handles && !found && (entry = readdir(handles))) {
		snprintf(link, sizeof link, "%s/%s", place, entry->d_name);
		found = entry->d_name[0] != '.' && !stat(link, &other) && other.st_ino == file->st_ino &&
			other.st_dev == file->st_dev;
	}
	if (handles)
		closedir(handles);
	return found;
}

static int is_open(const char *path)
{
	struct dirent *entry;
	struct stat file;
	int found = 0;

	if (lstat(path, &file) || !S_ISREG(file.st_mode) || file.st_nlink > 1)
		return 0;
	DIR *processes = opendir("/proc");
	while (processes && !found && (entry = readdir(processes)))
		found = atoi(entry->d_name) > 0 && has_open(entry->d_name, &file);
	if (processes)
		closedir(processes);
	return found;
}

/* Keep an open file under a hidden name; 1: kept, -1: it has such a name already. */
static int keep(int folder, const char *path, int replaced)
{
	static int count;
	char found[PATH_MAX], hidden[PATH_MAX + 64];
	int before = errno;

	if (!whole(folder, path, found) || !is_open(found)) {
		errno = before;
		return 0;
	}
	char *name = strrchr(found, '/') + 1;
	if (!strncmp(name, ".nfs", 4)) {
		errno = EBUSY;
		return -1;
	}
	snprintf(hidden, sizeof hidden, "%.*s.nfs%08x%08x", (int)(name - found), found, getpid(), count++);
	int failed = replaced ? REAL(link)(found, hidden) : REAL(rename)(found, hidden);
	errno = before;
	return !failed;
}

int unlink(const char *path)
{
	int kept = keep(AT_FDCWD, path, 0);
	return kept ? -(kept < 0) : REAL(unlink)(path);
}
int unlinkat(int folder, const char *path, int flags)
{
	int kept = flags & AT_REMOVEDIR ? 0 : keep(folder, path, 0);
	return kept ? -(kept < 0) : REAL(unlinkat)(folder, path, flags);
}
int rename(const char *from, const char *to)
{
	keep(AT_FDCWD, to, 1);
	return REAL(rename)(from, to);
}
int renameat(int a, const char *from, int b, const char *to)
{
	keep(b, to, 1);
	return REAL(renameat)(a, from, b, to);
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
	keep(b, to, 1);
	return REAL(renameat2)(a, from, b, to, flags);
}
