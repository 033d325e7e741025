/* Runs a command in which one system call, given by name, fails, like in a restricted container. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        unsigned number, error;
    } known[] = {
        {"seccomp", SYS_seccomp, EPERM},
        {"no-seccomp", SYS_seccomp, ENOSYS},
        {"process_vm_readv", SYS_process_vm_readv, EPERM},
        {"pidfd_open", SYS_pidfd_open, EPERM},
    };
    unsigned number = -1, error = 0;
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, argv[1])) number = known[i].number, error = known[i].error;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("forbid");
        return 1;
    }
    execvp(argv[2], argv + 2);
    perror(argv[argc - 1]);
    return 127;
}
