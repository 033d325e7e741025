/*
 * The first process of a pod. It holds the pod's namespaces open while the containers come and go, waits for orphaned
 * processes of a pod whose containers share one process namespace, and exits on SIGINT or SIGTERM.
 *
 * Signals are taken one by one with sigwaitinfo rather than in handlers, so nothing has to be safe to interrupt.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

static void ignored_but_not_discarded(int signal_number) { (void)signal_number; }

int main(void) {
    sigset_t awaited;
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGINT);
    sigaddset(&awaited, SIGTERM);
    sigaddset(&awaited, SIGCHLD);
    if (sigprocmask(SIG_BLOCK, &awaited, NULL) != 0) {
        return 1;
    }
    /* A process that is the first of its namespace does not get signals that it has no handler for. */
    struct sigaction action = {.sa_handler = ignored_but_not_discarded};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGCHLD, &action, NULL);

    for (;;) {
        int signal_number = sigwaitinfo(&awaited, NULL);
        if (signal_number == SIGINT || signal_number == SIGTERM) {
            return 0;
        }
        if (signal_number < 0 && errno != EINTR) {
            return 1;
        }
        /* One SIGCHLD may stand for several children. */
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
}
