/* Blocking calls, interrupted by a signal. argv[1] selects the call, argv[2] the flags of the handler. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t signals;
static void count(int signal) {
    (void)signal;
    signals++;
}

static struct sockaddr_in address(const char *ip, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, ip, &to.sin_addr);
    return to;
}

static pthread_t main_thread;
static int enough[2];
static void *disturb(void *unused) {
    /* Sends signals until the test opens the gate. */
    for (int i = 0; i < 20; i++) {
        usleep(10000);
        pthread_kill(main_thread, SIGUSR1);
    }
    puts("waiting");
    if (write(enough[1], "x", 1) != 1) perror("write");
    return unused;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = count, .sa_flags = strcmp(argv[argc - 1], "restart") ? 0 : SA_RESTART};
    char text[100] = {0};
    pthread_t thread;
    setvbuf(stdout, 0, _IONBF, 0);
    sigaction(SIGUSR1, &action, 0);
    main_thread = pthread_self();
    if (pipe(enough)) return 1;
    if (!strcmp(argv[1], "connect")) {
        int s = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in to = address("198.51.100.9", 7);
        pthread_create(&thread, 0, disturb, 0);
        int result = connect(s, (void *)&to, sizeof to);
        printf("%s, signals %d\n", result ? strerror(errno) : "connected", signals > 0);
        if (result) {
            /* The connection attempt continues; it is established when the socket is writable. */
            struct pollfd waits = {s, POLLOUT, 0};
            while (poll(&waits, 1, -1) < 0) {}
            int error = -1;
            socklen_t length = sizeof error;
            getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &length);
            printf("error %d\n", error);
        }
        pthread_join(thread, 0);
        if (write(s, "hello", 5) == 5 && read(s, text, 99) > 0) puts(text);
    } else if (!strcmp(argv[1], "receive")) {
        int s = socket(AF_INET, SOCK_DGRAM, 0);
        struct sockaddr_in to = address("198.51.100.7", 7), from;
        socklen_t length = sizeof from;
        sendto(s, "one", 3, 0, (void *)&to, sizeof to);
        recvfrom(s, text, 99, 0, (void *)&from, &length);
        puts(text);
        pthread_create(&thread, 0, disturb, 0);
        if (!strcmp(argv[argc - 1], "restart")) {
            /* No datagram is received until the forked process sends one below, after all signals. */
            if (!fork()) {
                sigset_t all;
                sigfillset(&all);
                sigprocmask(SIG_BLOCK, &all, 0);
                if (read(enough[0], text, 1) != 1) perror("read");
                sendto(s, "two", 3, 0, (void *)&to, sizeof to);
                _exit(0);
            }
        }
        long result = recvfrom(s, text, 99, 0, (void *)&from, &length);
        printf("%s, signals %d\n", result < 0 ? strerror(errno) : text, signals > 0);
        pthread_join(thread, 0);
    } else if (!strcmp(argv[1], "timer")) {
        /* An alarm every millisecond, like a profiler. */
        struct itimerval timer = {{0, 1000}, {0, 1000}};
        int failed = 0;
        sigaction(SIGALRM, &action, 0);
        setitimer(ITIMER_REAL, &timer, 0);
        for (int i = 0; i < 1000 || signals < 20; i++) {
            int fd = open("/remote-files/file", O_RDONLY);
            failed += fd < 0 || read(fd, text, 6) != 6 || strcmp(text, "remote");
            close(fd);
        }
        memset(&timer, 0, sizeof timer);
        setitimer(ITIMER_REAL, &timer, 0);
        puts("waiting");
        printf("failed %d\n", failed);
    } else if (!strcmp(argv[1], "slow")) {
        /* A slow open: signals do not interrupt it. Stopping and continuing changes nothing. */
        pthread_create(&thread, 0, disturb, 0);
        int fd = open("/remote-files/slow", O_RDONLY);
        if (fd < 0) perror("open");
        printf("%ld, signals %d\n", (long)read(fd, text, 99), signals > 0);
        pthread_join(thread, 0);
    } else {
        /* Calls that the kernel never interrupts, under many signals. */
        int failed = 0;
        pthread_create(&thread, 0, disturb, 0);
        struct stat st;
        for (int i = 0; i < 2000; i++) {
            failed += mkdir("/remote-files/x", 0700) != 0;
            failed += stat("/remote-files/x", &st) != 0;
            failed += rmdir("/remote-files/x") != 0;
        }
        pthread_join(thread, 0);
        printf("failed %d, signals %d\n", failed, signals > 0);
    }
    return 0;
}
