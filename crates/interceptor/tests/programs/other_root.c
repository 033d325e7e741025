/* Accesses a remote file, then again in a chroot. Exits with 77 if chroot is not permitted. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void look(const char *what) { printf("%s: %s\n", what, access("/remote-files/file", R_OK) ? "not there" : "there"); }

int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IONBF, 0);
    look("before");
    printf("a remote root: %s\n", chroot("/remote-files") ? "refused" : "made");
    pid_t child = fork();
    if (!child) {
        if (geteuid() && unshare(CLONE_NEWUSER)) _exit(77);
        if (chroot(argv[argc - 1])) _exit(77);
        look("inside");
        if (!fork()) {
            look("a child of it");
            _exit(0);
        }
        wait(0);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    look("outside");
    return WEXITSTATUS(status);
}
