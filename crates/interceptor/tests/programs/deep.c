/* Working directories deeper than PATH_MAX, below the directory in its argument. Prints the results, so that a
   supervised run can be compared with an unsupervised one. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *root;
static char text[32768];

static void say(const char *what, long result) { printf("%s: %s\n", what, result < 0 ? strerror(errno) : "ok"); }

/* The kernel's getcwd, without the fallback of the C library. */
static long kernel_getcwd(size_t size) { return syscall(SYS_getcwd, text, size); }

static void print_kernel(const char *what, size_t size) {
    long length = kernel_getcwd(size);
    if (length < 0) {
        printf("%s: %s\n", what, strerror(errno));
        return;
    }
    /* The roots of the runs differ in length, unless the path has a given length. */
    printf("%s: %ld %s\n", what, length >= PATH_MAX - 1 ? length : length - (long)strlen(root),
           length == (long)strlen(text) + 1 && !strncmp(text, root, strlen(root)) ? "right" : text);
}

static void print_library(const char *what, char *buffer, size_t size) {
    char *cwd = getcwd(buffer, size);
    size_t length = strlen(root);
    int known = cwd && !strncmp(cwd, root, length);
    printf("%s: %s %zu\n", what, !cwd ? strerror(errno) : known ? "right" : cwd, known ? strlen(cwd) - length : 0);
    if (cwd != buffer) free(cwd);
}

static void enter(const char *name) {
    if (mkdir(name, 0755) < 0 || chdir(name) < 0) {
        printf("enter: %s\n", strerror(errno));
        exit(1);
    }
}

/* Enters a directory whose path has exactly this many bytes, and returns. */
static void at_length(long length) {
    char name[PATH_MAX], what[64];
    long missing = length - kernel_getcwd(sizeof text);
    if (missing < 1 || missing > NAME_MAX) exit(2);
    memset(name, 'x', missing);
    name[missing] = 0;
    enter(name);
    snprintf(what, sizeof what, "%ld bytes", length);
    print_kernel(what, sizeof text);
    snprintf(what, sizeof what, "%ld bytes, small buffer", length);
    print_kernel(what, PATH_MAX - 1);
    say("up", chdir(".."));
    say("rmdir", rmdir(name));
}

int main(int argc, char **argv) {
    char name[201], link[8192];
    struct stat st, other;
    int depth = 0;
    (void)argc;
    root = argv[1];
    memset(name, 'd', 200);
    name[200] = 0;
    setvbuf(stdout, 0, _IOLBF, 0);
    say("chdir", chdir(root));
    print_kernel("root", sizeof text);
    print_kernel("no buffer", 0);
    print_kernel("small buffer", 3);
    for (; kernel_getcwd(sizeof text) < PATH_MAX - NAME_MAX + 10; depth++) enter(name);
    for (long length = PATH_MAX - 2; length <= PATH_MAX + 2; length++) at_length(length);
    for (int below = 0; below < 30; below++, depth++) enter(name);
    print_kernel("deep", sizeof text);
    print_kernel("deep, small buffer", 3);
    print_kernel("deep, no buffer", 0);
    print_library("library, allocated", 0, 0);
    print_library("library", text, sizeof text);
    print_library("library, small buffer", text, 100);
    say("readlink", readlink("/proc/self/cwd", link, sizeof link));
    int fd = open("file", O_CREAT | O_RDWR, 0640);
    say("write", write(fd, "deep\n", 5));
    say("stat", stat("file", &st));
    say("fstat", fstat(fd, &other));
    printf("same: %d %ld\n", st.st_ino == other.st_ino, (long)st.st_size);
    say("symlink", symlink("file", "link"));
    say("stat of a link", stat("link", &st));
    say("rename", rename("file", "../renamed"));
    say("access", access("../renamed", R_OK));
    say("missing", access("file", R_OK));
    int directory = open(".", O_RDONLY | O_DIRECTORY);
    say("openat", openat(directory, "../renamed", O_RDONLY));
    say("chdir /", chdir("/"));
    say("fchdir", fchdir(directory));
    print_kernel("by descriptor", sizeof text);
    pid_t child = fork();
    if (!child) {
        print_kernel("child", sizeof text);
        say("child", chdir(".."));
        say("child", unlink("renamed"));
        exit(0);
    }
    waitpid(child, 0, 0);
    say("unlink", unlink("link"));
    for (; depth > 0; depth--)
        if (chdir("..") < 0 || rmdir(name) < 0) say("leave", -1);
    print_kernel("root again", sizeof text);
    return 0;
}
