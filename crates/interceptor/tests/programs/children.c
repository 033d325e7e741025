/* Creates all kinds of child processes; each reads a remote file. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *command[] = {"grep", "-q", "^remote$", "/remote-files/file", 0};

static int reads(void) {
    char text[16] = {0};
    int fd = open("/remote-files/file", O_RDONLY);
    long length = read(fd, text, sizeof text - 1);
    close(fd);
    return length == 7 && !strcmp(text, "remote\n");
}

static void end(const char *what, pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    printf("%s %s\n", what, status == 0 ? "ok" : "failed");
}

static int in_clone(void *unused) {
    (void)unused;
    return !reads();
}

static void *execute(void *unused) {
    execvp(command[0], command);
    return unused;
}

static void *in_thread(void *failures) {
    for (int i = 0; i < 50; i++)
        if (!reads()) __atomic_add_fetch((int *)failures, 1, __ATOMIC_SEQ_CST);
    return 0;
}

int main(void) {
    pid_t child;
    setvbuf(stdout, 0, _IONBF, 0);

    if (!(child = fork())) _exit(!reads());
    end("fork", child);

    if (!(child = vfork())) {
        execvp(command[0], command);
        _exit(127);
    }
    end("vfork", child);

    posix_spawnp(&child, command[0], 0, 0, command, environ);
    end("posix_spawn", child);

    char *stack = malloc(1 << 20);
    child = clone(in_clone, stack + (1 << 20), CLONE_VM | CLONE_FS | SIGCHLD, 0);
    end("clone", child);

    struct clone_args arguments = {.exit_signal = SIGCHLD};
    child = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (!child) _exit(!reads());
    end("clone3", child);

    if (!(child = fork())) {
        setsid();
        _exit(!reads());
    }
    end("setsid", child);

    int ends[2];
    char result = 0;
    if (pipe(ends)) return 1;
    if (!(child = fork())) {
        setsid();
        if (fork()) _exit(0);
        while (getppid() == child) sched_yield();
        result = reads() ? 'y' : 'n';
        _exit(write(ends[1], &result, 1) != 1);
    }
    waitpid(child, 0, 0);
    if (read(ends[0], &result, 1) != 1) result = 0;
    printf("daemon %s\n", result == 'y' ? "ok" : "failed");

    if (!(child = fork())) {
        close(0);
        close(1);
        close(2);
        _exit(!(open("/remote-files/file", O_RDONLY) == 0 && reads()));
    }
    end("closed stdio", child);

    pthread_t other;
    if (!(child = fork())) {
        pthread_create(&other, 0, execute, 0);
        for (;;) pause();
    }
    end("execve of a thread", child);

    if (!(child = fork())) {
        int program = open("/bin/grep", O_RDONLY | O_CLOEXEC);
        syscall(SYS_execveat, program, "", command, environ, AT_EMPTY_PATH);
        _exit(127);
    }
    end("execveat", child);

    if (!(child = fork())) {
        syscall(SYS_close_range, 3, ~0U, 0);
        _exit(!(open("/remote-files/file", O_RDONLY) == 3 && reads()));
    }
    end("everything closed", child);

    pthread_t threads[20];
    int failures = 0;
    for (int i = 0; i < 20; i++) pthread_create(&threads[i], 0, in_thread, &failures);
    for (int i = 0; i < 20; i++) pthread_join(threads[i], 0);
    printf("threads %s\n", failures ? "failed" : "ok");
    return 0;
}
