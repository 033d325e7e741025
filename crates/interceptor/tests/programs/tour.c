/* The same tour as in the other languages, for several C libraries. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

int main(void) {
    char text[100] = {0};
    struct stat st;
    struct dirent **entries;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(7)}, from;
    inet_pton(AF_INET, "198.51.100.7", &to.sin_addr);
    setvbuf(stdout, 0, _IONBF, 0);
    printf("env %s\n", getenv("GREETING"));
    FILE *file = fopen("/remote-files/file", "r");
    printf("read %s\n", file && fgets(text, sizeof text, file) ? text : "failed");
    int count = scandir("/remote-files/list", &entries, 0, alphasort);
    printf("list [");
    for (int i = 2; i < count; i++) printf("%s%s", i > 2 ? " " : "", entries[i]->d_name);
    printf("]\nmissing %s\n", stat("/remote-files/missing", &st) ? "true" : "false");
    file = fopen("/remote-files/written", "w");
    printf("write %s\n", file && fputs("written", file) >= 0 && !fclose(file) ? "ok" : "failed");
    gethostname(text, sizeof text);
    printf("hostname %s\n", text);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(s, (void *)&to, sizeof to)) perror("connect");
    send(s, "hello", 5, 0);
    memset(text, 0, sizeof text);
    recv(s, text, sizeof text, 0);
    printf("tcp %s\n", text);
    /* Like a DNS resolver: several messages at once, and a check of the sender of the response. */
    int u = socket(AF_INET, SOCK_DGRAM, 0);
    struct iovec vector = {"packet", 6};
    struct mmsghdr messages[1] = {{.msg_hdr = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &vector, .msg_iovlen = 1}}};
    if (sendmmsg(u, messages, 1, 0) != 1 || messages[0].msg_len != 6) perror("sendmmsg");
    memset(text, 0, sizeof text);
    struct iovec into = {text, sizeof text};
    struct msghdr header = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &into, .msg_iovlen = 1};
    recvmsg(u, &header, 0);
    printf("packet %s %s:%d\n", text, inet_ntoa(from.sin_addr), ntohs(from.sin_port));
    return 0;
}
