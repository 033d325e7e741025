/* Reads a remote file repeatedly until another one exists. It is the program for debugger tests. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int leaf(int number) {
    char text[8] = {0};
    int fd = open("/remote-files/file", O_RDONLY);
    long length = read(fd, text, 6);
    close(fd);
    return length == 6 ? number : -1;
}

int main(void) {
    int wrong = 0;
    while (access("/remote-files/stop", F_OK)) wrong += leaf(1) != 1;
    printf("wrong %d\n", wrong);
    return 0;
}
