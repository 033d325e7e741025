/* Makes its memory unreadable, like programs with secrets, and then accesses a remote file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

int main(void) {
    prctl(PR_SET_DUMPABLE, 0);
    puts(open("/remote-files/file", O_RDONLY) < 0 ? strerror(errno) : "there");
    return 0;
}
