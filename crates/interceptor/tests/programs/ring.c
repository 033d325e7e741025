/* Exits with the error number of io_uring_setup. */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
    char parameters[512] = {0};
    return syscall(SYS_io_uring_setup, 4, parameters) == -1 ? errno : 0;
}
