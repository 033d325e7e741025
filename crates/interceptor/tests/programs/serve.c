/* Servers. argv[1] selects the mode. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static volatile sig_atomic_t signals;
static void count(int signal) {
    (void)signal;
    signals++;
}

static int listener(int flags) {
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int s = socket(AF_INET, SOCK_STREAM | flags, 0);
    if (bind(s, (void *)&any, sizeof any) || listen(s, 4096)) perror("listen");
    return s;
}

static void show(struct sockaddr_in *from) {
    char text[100];
    printf("%s:%d\n", inet_ntop(AF_INET, &from->sin_addr, text, sizeof text), ntohs(from->sin_port));
}

/* One thread, edge-triggered, that returns the address of the client in the response. */
static void events(void) {
    int s = listener(SOCK_NONBLOCK), epoll = epoll_create1(0);
    struct epoll_event event = {EPOLLIN | EPOLLET, {.fd = s}}, ready[64];
    epoll_ctl(epoll, EPOLL_CTL_ADD, s, &event);
    for (;;) {
        int n = epoll_wait(epoll, ready, 64, -1);
        for (int i = 0; i < n; i++) {
            if (ready[i].data.fd != s) {
                char data[1000], text[100], answer[200];
                long got = read(ready[i].data.fd, data, sizeof data);
                if (got <= 0) {
                    close(ready[i].data.fd);
                    continue;
                }
                struct sockaddr_in from;
                socklen_t length = sizeof from;
                getpeername(ready[i].data.fd, (void *)&from, &length);
                inet_ntop(AF_INET, &from.sin_addr, text, sizeof text);
                int size = snprintf(answer, sizeof answer, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(text), text);
                if (write(ready[i].data.fd, answer, size) != size) perror("write");
                continue;
            }
            struct sockaddr_in from;
            socklen_t length = sizeof from;
            int c;
            while ((c = accept4(s, (void *)&from, &length, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
                struct epoll_event added = {EPOLLIN, {.fd = c}};
                epoll_ctl(epoll, EPOLL_CTL_ADD, c, &added);
            }
        }
    }
}

static pthread_t main_thread;
static void *disturb(void *unused) {
    for (int i = 0; i < 20; i++) {
        usleep(10000);
        pthread_kill(main_thread, SIGUSR1);
    }
    puts("waiting");
    return unused;
}

/* Waits for a connection under signals. */
static int disturbed(int restart) {
    struct sigaction action = {.sa_handler = count, .sa_flags = restart ? SA_RESTART : 0};
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    pthread_t thread;
    int s = listener(0);
    sigaction(SIGUSR1, &action, 0);
    main_thread = pthread_self();
    pthread_create(&thread, 0, disturb, 0);
    int c = accept(s, (void *)&from, &length);
    printf("%s, signals %d\n", c < 0 ? strerror(errno) : "accepted", signals > 0);
    if (c >= 0) show(&from);
    pthread_join(thread, 0);
    if (c < 0) {
        /* The next call gets it. */
        c = accept(s, (void *)&from, &length);
        show(&from);
    }
    return 0;
}

static int shared;
static void *accept_one(void *unused) {
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
    if (accept(shared, (void *)&from, &length) >= 0) show(&from);
    return unused;
}

/* A thread is cancelled while it waits; another one gets the connection. */
static int cancelled(void) {
    pthread_t first, second;
    shared = listener(0);
    pthread_create(&first, 0, accept_one, 0);
    usleep(50000);
    pthread_cancel(first);
    pthread_join(first, 0);
    puts("waiting");
    pthread_create(&second, 0, accept_one, 0);
    pthread_join(second, 0);
    return 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IONBF, 0);
    if (argc < 2) return 2;
    if (!strcmp(argv[1], "events")) events();
    if (!strcmp(argv[1], "cancelled")) return cancelled();
    return disturbed(!strcmp(argv[1], "restart"));
}
