/* Unusual paths below the directory in its argument. Prints the results, so that a supervised run on a remote directory
   can be compared with an unsupervised run on a local one. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *root;
static char path_buffer[8][8192];
static int path_next;

static const char *in(const char *name) {
    char *buffer = path_buffer[path_next++ % 8];
    snprintf(buffer, sizeof path_buffer[0], "%s/%s", root, name);
    return buffer;
}

static void say(const char *what, long result) { printf("%s: %s\n", what, result < 0 ? strerror(errno) : "ok"); }

static void print_file(const char *what, int fd) {
    char text[64] = {0};
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    printf("%s: %s\n", what, length < 0 ? strerror(errno) : text);
    if (fd >= 0) close(fd);
}

static void make(const char *name, const char *text) {
    int fd = open(in(name), O_CREAT | O_WRONLY, 0644);
    say("make", write(fd, text, strlen(text)));
    close(fd);
}

/* The working directory below the root, which differs between the runs. */
static void print_directory(const char *what) {
    char text[8192], link[8192] = {0};
    char *cwd = getcwd(text, sizeof text);
    size_t length = strlen(root);
    int known = cwd && !strncmp(cwd, root, length);
    printf("%s: %s\n", what, !cwd ? strerror(errno) : known ? cwd + length : "elsewhere");
    if (readlink("/proc/self/cwd", link, sizeof link - 1) < 0 || !cwd || strcmp(link, cwd)) printf("%s: link differs\n", what);
}

static void print_descriptor(const char *what, int fd) {
    char name[64], text[8192] = {0};
    size_t length = strlen(root);
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, i ? "/dev/fd/%d" : "/proc/self/fd/%d", fd);
        int known = readlink(name, text, sizeof text - 1) > 0 && !strncmp(text, root, length);
        printf("%s: %s\n", what, known ? text + length : "elsewhere");
    }
}

static void endings(void) {
    struct stat st;
    char text[100];
    print_file("open file/", open(in("file/"), O_RDONLY));
    print_file("open file/.", open(in("file/."), O_RDONLY));
    print_file("open file/..", open(in("file/.."), O_RDONLY));
    say("create new/", open(in("new/"), O_CREAT | O_WRONLY, 0600));
    say("stat file/", stat(in("file/"), &st));
    say("stat directory/", stat(in("directory/"), &st));
    say("stat directory//", stat(in("directory//"), &st));
    printf("lstat to-directory/: %d\n", lstat(in("to-directory/"), &st) == 0 && S_ISDIR(st.st_mode));
    printf("lstat to-directory: %d\n", lstat(in("to-directory"), &st) == 0 && S_ISLNK(st.st_mode));
    say("access file/", access(in("file/"), R_OK));
    say("readlink to-directory/", readlink(in("to-directory/"), text, sizeof text));
    say("unlink file/", unlink(in("file/")));
    say("mkdir made/", mkdir(in("made/"), 0700));
    say("rmdir made/.", rmdir(in("made/.")));
    say("rmdir directory/inner/..", rmdir(in("directory/inner/..")));
    say("rename made/ moved/", rename(in("made/"), in("moved/")));
    say("rename file other/", rename(in("file"), in("other/")));
    say("rename .", rename(in("directory/."), in("x")));
    say("rmdir moved/", rmdir(in("moved/")));
    say("chmod file/", chmod(in("file/"), 0600));
    say("truncate file/", truncate(in("file/"), 0));
    say("symlink new/", symlink("x", in("new/")));
    say("link to new/", link(in("file"), in("new/")));
}

static void parents(void) {
    print_file("to-directory/../file", open(in("to-directory/../file"), O_RDONLY));
    print_file("deep/to-inner/../named", open(in("deep/to-inner/../named"), O_RDONLY));
    print_file("deep/to-inner/../../file", open(in("deep/to-inner/../../file"), O_RDONLY));
    print_file("deep/down/to-up/../file", open(in("deep/down/to-up/../file"), O_RDONLY));
    print_file("missing/../file", open(in("missing/../file"), O_RDONLY));
    print_file("file/../file", open(in("file/../file"), O_RDONLY));
    print_file("loop/../file", open(in("loop/../file"), O_RDONLY));
}

static void directories(void) {
    struct stat st, other;
    say("chdir through a link", chdir(in("to-directory")));
    print_directory("there");
    say("chdir ..", chdir(".."));
    print_directory("above");
    say("chdir through two links", chdir("deep/to-inner"));
    print_directory("there");
    print_file("../named", open("../named", O_RDONLY));
    printf("the directory itself: %d\n", fstatat(AT_FDCWD, "", &st, AT_EMPTY_PATH) == 0 &&
                                             stat(in("directory/inner"), &other) == 0 && st.st_ino == other.st_ino);
    say("rmdir .", rmdir("."));
    say("rename of it", rename(in("directory/inner"), in("directory/renamed")));
    print_directory("renamed");
    print_file("below", open("deepest", O_RDONLY));
    int fd = open(".", O_RDONLY | O_DIRECTORY);
    print_descriptor("descriptor", fd);
    say("rename back", rename(in("directory/renamed"), in("directory/inner")));
    print_descriptor("descriptor", fd);
    print_file("below the descriptor", openat(fd, "deepest", O_RDONLY));
    say("chdir /", chdir("/"));
    say("fchdir", fchdir(fd));
    print_directory("by descriptor");
    say("fchdir of a file", fchdir(open(in("file"), O_RDONLY)));
    say("fchdir of nothing", fchdir(777));
    print_directory("still there");
    close(fd);
    say("run there", system("pwd >/dev/null && cat deepest && (cd .. && cat named) && cd /proc/self/cwd && cat deepest"));
    /* A child keeps its initial directory even if its first call comes after its parent has changed its own. */
    int ends[2];
    char byte;
    fflush(stdout);
    for (int i = 0; i < 20; i++) {
        if (pipe(ends)) return;
        pid_t child = fork();
        if (!child) {
            if (read(ends[0], &byte, 1) != 1) _exit(2);
            _exit(access("deepest", F_OK) != 0);
        }
        if (chdir("/") || write(ends[1], "x", 1) != 1) say("leave", -1);
        int status = -1;
        waitpid(child, &status, 0);
        if (status) printf("born in the wrong place: %x\n", status);
        if (chdir(in("directory/inner"))) say("back", -1);
        close(ends[0]);
        close(ends[1]);
    }
    say("chdir /", chdir("/"));
}

static void confined(void) {
    static const struct {
        const char *path;
        unsigned long long resolve;
    } cases[] = {
        {"named", RESOLVE_BENEATH}, {"../file", RESOLVE_BENEATH}, {"inner/../named", RESOLVE_BENEATH},
        {"/etc/hostname", RESOLVE_BENEATH}, {"../../../named", RESOLVE_IN_ROOT}, {"/named", RESOLVE_IN_ROOT},
        {"/etc/hostname", RESOLVE_IN_ROOT}, {"missing", RESOLVE_IN_ROOT},
    };
    int directory = open(in("directory"), O_RDONLY | O_DIRECTORY);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct open_how how = {.flags = O_RDONLY, .resolve = cases[i].resolve};
        print_file(cases[i].path, syscall(SYS_openat2, directory, cases[i].path, &how, sizeof how));
    }
    close(directory);
}

/* Call numbers of Linux 6.13, which older headers lack. */
struct attribute {
    unsigned long long value;
    unsigned int size, flags;
};

static void attributes(void) {
    char text[100] = {0};
    struct attribute set = {(unsigned long)"blue", 4, 0}, get = {(unsigned long)text, sizeof text, 0};
    int directory = open(root, O_RDONLY | O_DIRECTORY);
    long result = syscall(463, directory, "file", 0, "user.colour", &set, sizeof set);
    say("setxattrat", result);
    result = syscall(464, directory, "file", 0, "user.colour", &get, sizeof get);
    printf("getxattrat: %ld %s\n", result, text);
    printf("listxattrat: %ld\n", syscall(465, directory, "file", 0, text, sizeof text));
    say("removexattrat", syscall(466, directory, "file", 0, "user.colour"));
    say("getxattrat", syscall(464, AT_FDCWD, in("file"), AT_SYMLINK_NOFOLLOW, "user.colour", &get, sizeof get));
    close(directory);
}

int main(int argc, char **argv) {
    root = argv[argc - 1];
    setvbuf(stdout, 0, _IOLBF, 0);
    make("file", "file\n");
    say("mkdir", mkdir(in("directory"), 0755));
    say("mkdir", mkdir(in("directory/inner"), 0755));
    say("mkdir", mkdir(in("deep"), 0755));
    say("mkdir", mkdir(in("deep/down"), 0755));
    make("directory/named", "named\n");
    make("directory/inner/deepest", "deepest\n");
    say("symlink", symlink("directory", in("to-directory")));
    say("symlink", symlink("../to-directory/inner", in("deep/to-inner")));
    say("symlink", symlink("../../directory", in("deep/down/to-up")));
    say("symlink", symlink("loop", in("loop")));
    endings();
    parents();
    directories();
    confined();
    attributes();
    return 0;
}
