/* Executes a program in a directory, in many ways. The arguments are the directory and the program. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *directory, *program;
static volatile sig_atomic_t handled;

static void handle(int signal) { handled = signal; }

/* What the process still sees of its directory. */
static void failed(const char *what) {
    char text[64] = {0};
    int error = errno, fd = open("file", O_RDONLY);
    if (fd < 0 || read(fd, text, sizeof text - 1) < 0) strcpy(text, strerror(errno));
    printf("%s: %s, still %s\n", what, strerror(error), text);
    fflush(stdout);
    _exit(1);
}

static void execute(char *what) {
    char *arguments[] = {program, what, 0};
    execve(program, arguments, environ);
    failed(what);
}

static void *in_thread(void *what) {
    execute(what);
    return 0;
}

static pid_t start(void) {
    fflush(stdout);
    pid_t child = fork();
    if (!child && chdir(directory)) failed("chdir");
    return child;
}

/* Sends signals to a child until it has ended. */
static void disturb(pid_t child, int first, int second) {
    while (waitpid(child, 0, WNOHANG) == 0) {
        kill(child, first);
        if (second) kill(child, second);
        usleep(100);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    directory = argv[1];
    program = argv[2];
    setvbuf(stdout, 0, _IOLBF, 0);
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    sigprocmask(SIG_SETMASK, &blocked, 0);
    pid_t child;

    if (!(child = start())) execute("execve");
    waitpid(child, 0, 0);

    /* This process shares its memory, and continues afterwards. */
    char *what[] = {program, "vfork", 0}, here[4096];
    if (!getcwd(here, sizeof here) || chdir(directory)) failed("chdir");
    if (!(child = vfork())) {
        execve(program, what, environ);
        _exit(1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status) printf("vfork: failed\n");
    what[1] = "posix_spawn";
    int error = posix_spawn(&child, program, 0, 0, what, environ);
    if (error) printf("posix_spawn: %s\n", strerror(error));
    waitpid(child, 0, 0);
    char still[4096];
    printf("the parent is still there: %d\n", getcwd(still, sizeof still) && !strcmp(still, directory));
    if (chdir(here)) failed("chdir");

    if (!(child = start())) {
        pthread_t other;
        pthread_create(&other, 0, in_thread, "thread");
        for (;;) pause();
    }
    waitpid(child, 0, 0);

    if (!(child = start())) {
        int file = open(program, O_RDONLY | O_CLOEXEC);
        char *arguments[] = {program, "execveat", 0};
        syscall(SYS_execveat, file, "", arguments, environ, AT_EMPTY_PATH);
        failed("execveat");
    }
    waitpid(child, 0, 0);

    if (!(child = start())) {
        char *arguments[] = {"skipped-program", "execvp", 0}, path[4096], *name = strdup(program);
        *strrchr(name, '/') = 0;
        /* It is found twice, and the first directories do not have it. */
        snprintf(path, sizeof path, "/nothing:/usr/bin:%s:%s", name, name);
        setenv("PATH", path, 1);
        execvp(arguments[0], arguments);
        failed("execvp");
    }
    waitpid(child, 0, 0);

    if (!(child = start())) {
        char *arguments[] = {"./skipped-program", "relative", 0};
        execve(arguments[0], arguments, environ);
        failed("relative");
    }
    waitpid(child, 0, 0);

    /* Signals that a program ignores without a handler. */
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    for (int i = 0; i < 10; i++) {
        if (!(child = start())) {
            sigaction(SIGURG, &action, 0);
            execute("signals");
        }
        disturb(child, SIGURG, 0);
        if (!(child = start())) execute("job control");
        disturb(child, SIGSTOP, SIGCONT);
    }

    if (!(child = start())) {
        char *arguments[] = {"/no/such/skipped-program", 0};
        execve(arguments[0], arguments, environ);
        failed("missing program");
    }
    waitpid(child, 0, 0);

    if (!(child = start())) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execute("traced");
    }
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) ptrace(PTRACE_CONT, child, 0, 0);
    return 0;
}
