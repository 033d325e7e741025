/* Watches a path and prints what comes of it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>

int main(int argc, char **argv) {
    int result = inotify_add_watch(inotify_init1(0), argv[argc - 1], IN_MODIFY);
    puts(result < 0 ? strerror(errno) : "ok");
    return 0;
}
