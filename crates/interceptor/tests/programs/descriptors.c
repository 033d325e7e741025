/* Opens a file until that fails, with standard input closed and a low limit, and prints the descriptor numbers. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct rlimit limit = {8, 8};
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int fd = 3; fd < 100; fd++) close(fd);
    close(0);
    for (;;) {
        int fd = open(argv[argc - 1], O_RDONLY);
        if (fd < 0) break;
        printf("%d ", fd);
    }
    puts(strerror(errno));
    return 0;
}
