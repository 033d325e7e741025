/* Makes every kind of file call below the directory in its argument and prints the results, so that a supervised run
   on a remote directory can be compared with an unsupervised run on a local one. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

static void say(const char *what, long result) {
    printf("%s: %s\n", what, result < 0 ? strerror(errno) : "ok");
}

static char path_buffer[8][8192];
static int path_next;

/* A path below the root, valid for the next few calls. */
static const char *root;
static const char *in(const char *name) {
    char *buffer = path_buffer[path_next++ % 8];
    snprintf(buffer, sizeof path_buffer[0], "%s/%s", root, name);
    return buffer;
}

static void print_file(const char *what, int fd) {
    char text[64] = {0};
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    printf("%s: %s\n", what, length < 0 ? strerror(errno) : text);
    if (fd >= 0) close(fd);
}

static void print_stat(const char *what, int result, const struct stat *st) {
    if (result < 0)
        printf("%s: %s\n", what, strerror(errno));
    else
        /* Current times differ between runs; explicitly set ones do not. */
        printf("%s: mode %o links %ld size %ld time %ld.%09ld\n", what, st->st_mode, (long)st->st_nlink,
               S_ISDIR(st->st_mode) ? 0 : (long)st->st_size,
               st->st_mtim.tv_sec > 1500000000 ? 0 : (long)st->st_mtim.tv_sec,
               st->st_mtim.tv_sec > 1500000000 ? 0 : st->st_mtim.tv_nsec);
}

static int compare(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void list(const char *what, const char *path) {
    DIR *directory = opendir(path);
    char *names[64];
    int count = 0;
    struct dirent *entry;
    if (!directory) {
        say(what, -1);
        return;
    }
    while ((entry = readdir(directory)) && count < 64) names[count++] = strdup(entry->d_name);
    closedir(directory);
    qsort(names, count, sizeof *names, compare);
    printf("%s:", what);
    for (int i = 0; i < count; i++) printf(" %s", names[i]);
    printf("\n");
}

int main(int argc, char **argv) {
    struct stat st;
    struct statx sx;
    struct statfs fs;
    char text[8192];
    root = argv[argc - 1];
    setvbuf(stdout, 0, _IOLBF, 0);
    umask(027);

    /* Creating, writing, reading. */
    int fd = open(in("file"), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
    say("create", fd);
    printf("cloexec %d\n", fcntl(fd, F_GETFD));
    say("write", write(fd, "hello world\n", 12));
    say("create again", open(in("file"), O_CREAT | O_EXCL | O_RDWR, 0666));
    close(fd);
    print_file("open", open(in("file"), O_RDONLY));
    print_file("openat", openat(AT_FDCWD, in("file"), O_RDONLY));
    print_file("missing", open(in("missing"), O_RDONLY));
    print_file("below a file", open(in("file/x"), O_RDONLY));
    struct open_how how = {.flags = O_RDONLY, .resolve = RESOLVE_NO_SYMLINKS};
    print_file("openat2", syscall(SYS_openat2, AT_FDCWD, in("file"), &how, sizeof how));
    say("append", fd = open(in("file"), O_WRONLY | O_APPEND));
    say("append write", write(fd, "more\n", 5));
    close(fd);
    fd = creat(in("created"), 0644);
    say("creat", fd);
    printf("cloexec %d\n", fcntl(fd, F_GETFD));
    close(fd);
    fd = open(in("file"), O_RDONLY);
    char *map = mmap(0, 5, PROT_READ, MAP_PRIVATE, fd, 0);
    printf("mmap: %.5s\n", map == MAP_FAILED ? "fails" : map);
    close(fd);

    /* Metadata. */
    struct timespec times[2] = {{1000000000, 5}, {1100000000, 7}};
    say("utimensat", utimensat(AT_FDCWD, in("file"), times, 0));
    print_stat("stat", stat(in("file"), &st), &st);
    print_stat("lstat", lstat(in("file"), &st), &st);
    print_stat("stat missing", stat(in("missing"), &st), &st);
#ifdef SYS_stat
    print_stat("old stat", syscall(SYS_stat, in("file"), &st), &st);
    print_file("old open", syscall(SYS_open, in("file"), O_RDONLY));
    say("old access", syscall(SYS_access, in("file"), R_OK));
#endif
    memset(&sx, 0, sizeof sx);
    say("statx", statx(AT_FDCWD, in("file"), 0, STATX_BASIC_STATS, &sx));
    printf("statx: mode %o size %lld time %lld\n", sx.stx_mode, (long long)sx.stx_size, (long long)sx.stx_mtime.tv_sec);
    say("chmod", chmod(in("file"), 0600));
    print_stat("after chmod", stat(in("file"), &st), &st);
    say("chown", chown(in("file"), -1, -1));
    say("chown", chown(in("file"), getuid(), getgid()));
    struct utimbuf old_times = {5, 1200000000};
    say("utime", utime(in("file"), &old_times));
    struct timeval middle_times[2] = {{5, 0}, {1300000000, 3}};
    say("utimes", utimes(in("file"), middle_times));
    print_stat("after utimes", stat(in("file"), &st), &st);
    say("truncate", truncate(in("file"), 5));
    print_file("after truncate", open(in("file"), O_RDONLY));
    say("access", access(in("file"), R_OK | W_OK));
    say("access missing", access(in("missing"), F_OK));
    say("faccessat2", syscall(SYS_faccessat2, AT_FDCWD, in("file"), R_OK, AT_EACCESS));
    say("statfs", statfs(in("file"), &fs));
    say("statfs missing", statfs(in("missing"), &fs));
    say("setxattr", setxattr(in("file"), "user.colour", "blue", 4, 0));
    long length = getxattr(in("file"), "user.colour", text, sizeof text);
    printf("getxattr: %.*s\n", (int)(length < 0 ? 0 : length), text);
    printf("getxattr size: %ld\n", (long)getxattr(in("file"), "user.colour", 0, 0));
    say("getxattr short", getxattr(in("file"), "user.colour", text, 2));
    say("getxattr missing", getxattr(in("file"), "user.smell", text, 10));
    printf("listxattr: %ld\n", (long)listxattr(in("file"), text, sizeof text));
    say("removexattr", removexattr(in("file"), "user.colour"));

    /* Names. */
    say("mkdir", mkdir(in("directory"), 0777));
    print_stat("mkdir mode", stat(in("directory"), &st), &st);
    say("mkdir again", mkdir(in("directory"), 0777));
    say("symlink", symlink("file", in("link")));
    say("symlink absolute", symlink("/file", in("directory/absolute")));
    length = readlink(in("link"), text, sizeof text);
    printf("readlink: %.*s\n", (int)(length < 0 ? 0 : length), text);
    length = readlink(in("link"), text, 2);
    printf("readlink short: %.*s\n", (int)(length < 0 ? 0 : length), text);
    say("readlink of a file", readlink(in("file"), text, sizeof text));
    print_file("through a link", open(in("link"), O_RDONLY));
    say("nofollow", open(in("link"), O_RDONLY | O_NOFOLLOW));
    print_stat("stat of a link", stat(in("link"), &st), &st);
    printf("lstat of a link: %d\n", lstat(in("link"), &st) == 0 && S_ISLNK(st.st_mode));
    say("link", link(in("file"), in("hard")));
    print_stat("links", stat(in("hard"), &st), &st);
    say("rename", rename(in("hard"), in("directory/renamed")));
    say("renameat2 noreplace", renameat2(AT_FDCWD, in("file"), AT_FDCWD, in("directory/renamed"), RENAME_NOREPLACE));
    say("rename across", rename(in("file"), "/tmp/across-file-systems-or-not/x") < 0 ? 0 : -1);
    say("mkfifo", mkfifo(in("pipe"), 0644));
    list("list", root);
    list("list directory", in("directory"));
    list("list missing", in("missing"));
    say("rmdir full", rmdir(in("directory")));
    say("unlink a directory", unlink(in("directory")));
    say("unlink", unlink(in("pipe")));
    say("unlink missing", unlink(in("pipe")));

    /* Directories as descriptors. */
    int directory = open(in("directory"), O_RDONLY | O_DIRECTORY);
    say("open directory", directory);
    say("O_DIRECTORY on a file", open(in("file"), O_RDONLY | O_DIRECTORY));
    print_file("below it", openat(directory, "renamed", O_RDONLY));
    print_file("above it", openat(directory, "../file", O_RDONLY));
    print_file("far above it", openat(directory, "../../../../../../../../../../../dev/null", O_RDONLY));
    print_stat("fstatat", fstatat(directory, "renamed", &st, 0), &st);
    printf("fstatat above: %d\n", fstatat(directory, "..", &st, 0) == 0 && S_ISDIR(st.st_mode));
    printf("fstat: %d\n", fstat(directory, &st) == 0 && S_ISDIR(st.st_mode));
    say("mkdirat", mkdirat(directory, "inner", 0700));
    say("unlinkat", unlinkat(directory, "inner", AT_REMOVEDIR));
    say("renameat", renameat(directory, "renamed", directory, "again"));
    say("linkat", linkat(directory, "again", directory, "hard", 0));
    say("symlinkat", symlinkat("again", directory, "soft"));
    length = readlinkat(directory, "soft", text, sizeof text);
    printf("readlinkat: %.*s\n", (int)(length < 0 ? 0 : length), text);
    say("fchmodat", fchmodat(directory, "again", 0640, 0));
    say("fchownat", fchownat(directory, "soft", getuid(), getgid(), AT_SYMLINK_NOFOLLOW));
    say("faccessat", faccessat(directory, "again", R_OK, 0));
    snprintf(text, sizeof text, "/proc/self/fd/%d", directory);
    char link_text[8192];
    length = readlink(text, link_text, sizeof link_text);
    printf("own descriptor: %d\n", length == (long)strlen(in("directory")) && !memcmp(link_text, in("directory"), length));
    snprintf(text, sizeof text, "/proc/self/fd/%d/again", directory);
    print_file("through the descriptor", open(text, O_RDONLY));
    fd = open(in("file"), O_PATH);
    say("O_PATH", fd);
    print_stat("stat by O_PATH", fstatat(fd, "", &st, AT_EMPTY_PATH), &st);
    snprintf(text, sizeof text, "/proc/self/fd/%d", fd);
    print_file("reopened", open(text, O_RDONLY));
    close(fd);
    fd = open(in("."), O_TMPFILE | O_RDWR, 0600);
    say("O_TMPFILE", fd);
    say("its write", write(fd, "x", 1));
    snprintf(text, sizeof text, "/proc/self/fd/%d", fd);
    say("its name", linkat(AT_FDCWD, text, AT_FDCWD, in("named"), AT_SYMLINK_FOLLOW));
    say("its name again", linkat(AT_FDCWD, text, AT_FDCWD, in("named"), AT_SYMLINK_FOLLOW));
    say("its second name", linkat(fd, "", AT_FDCWD, in("second"), AT_EMPTY_PATH));
    say("its link", linkat(AT_FDCWD, text, AT_FDCWD, in("third"), 0));
    print_file("named", open(in("named"), O_RDONLY));
    print_stat("second name", stat(in("second"), &st), &st);
    say("unlink named", unlink(in("named")));
    say("unlink second", unlink(in("second")));
    close(fd);

    /* The working directory. */
    say("chdir", chdir(in("directory")));
    printf("getcwd: %d\n", !strcmp(getcwd(text, sizeof text) ? text : "", in("directory")));
    errno = 0;
    printf("getcwd short: %d\n", !getcwd(text, 3) && errno == ERANGE);
    print_file("relative", open("again", O_RDONLY));
    print_file("relative above", open("../file", O_RDONLY));
    print_file("relative to the machine", open("../../../../../../../../../../../dev/null", O_RDONLY));
    length = readlink("/proc/self/cwd", text, sizeof text);
    printf("/proc/self/cwd: %d\n", length == (long)strlen(in("directory")) && !memcmp(text, in("directory"), length));
    list("list .", ".");
    print_stat("stat relative", stat("soft", &st), &st);
    say("chdir missing", chdir("missing"));
    say("chdir to a file", chdir("again"));
    say("chdir ..", chdir(".."));
    printf("getcwd: %d\n", !strcmp(getcwd(text, sizeof text) ? text : "", root));
    print_file("relative", open("directory/again", O_RDONLY));
    say("fchdir", fchdir(directory));
    print_file("relative", open("again", O_RDONLY));
    fflush(stdout);
    say("system", system("cat again; cd ..; cat file; pwd >/dev/null") == 0 ? 0 : -1);
    say("chdir /", chdir("/"));
    printf("getcwd: %s\n", getcwd(text, sizeof text));
    say("chdir back", chdir(in("directory")));
    int slash = open("/", O_RDONLY | O_DIRECTORY);
    say("fchdir /", fchdir(slash));
    printf("getcwd: %s\n", getcwd(text, sizeof text));
    print_file("relative", open("dev/null", O_RDONLY));

    /* Unusual paths. */
    print_file("doubled slashes", open(in("/./directory//../file"), O_RDONLY));
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 0;
    say("too long a path", open(text, O_RDONLY));
    text[300] = 0;
    say("too long a name", open(in(text), O_RDONLY));
    say("a bad pointer", open((char *)8, O_RDONLY));
    say("an empty path", open("", O_RDONLY));
    say("a bad directory", openat(999, "x", O_RDONLY));
    print_file("invalid text", open(in("\xff\xfe"), O_CREAT | O_RDWR, 0600));
    list("list", root);
    return 0;
}
