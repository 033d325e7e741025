/* Watches a path with inotify and fanotify, requests its file handle, and prints the results. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>

static void say(const char *what, int result) { printf("%s: %s\n", what, result < 0 ? strerror(errno) : "ok"); }

int main(int argc, char **argv) {
    const char *path = argv[argc - 1];
    say("inotify", inotify_add_watch(inotify_init1(0), path, IN_MODIFY));
    int watcher = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID, O_RDONLY);
    if (watcher >= 0) say("fanotify", fanotify_mark(watcher, FAN_MARK_ADD, FAN_MODIFY, AT_FDCWD, path));
    struct file_handle *handle = calloc(1, sizeof *handle + MAX_HANDLE_SZ);
    int mount;
    handle->handle_bytes = MAX_HANDLE_SZ;
    say("handle", name_to_handle_at(AT_FDCWD, path, handle, &mount, 0));
    return 0;
}
