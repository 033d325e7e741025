/* Queries and sets the host name and the domain name. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

static void say(const char *what, long result) { printf("%s: %s\n", what, result < 0 ? strerror(errno) : "ok"); }

static const char *in_file(const char *path) {
    static char text[256];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    long length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (length < 1 || text[length - 1] != '\n') return "no line";
    text[length - 1] = 0;
    /* Like a file of the kernel, it can be read again. */
    char again[256] = {0};
    if (pread(fd, again, sizeof again - 1, 0) != length || strncmp(again, text, length - 1)) return "different";
    close(fd);
    return text;
}

static void show(void) {
    char host[256] = "?", domain[256] = "?";
    struct utsname names;
    gethostname(host, sizeof host);
    getdomainname(domain, sizeof domain);
    uname(&names);
    printf("host [%s] [%s] [%s]\n", host, names.nodename, in_file("/proc/sys/kernel/hostname"));
    printf("domain [%s] [%s] [%s]\n", domain, names.domainname, in_file("/proc/sys/kernel/domainname"));
}

int main(int argc, char **argv) {
    static const char longer[66] = "0123456789012345678901234567890123456789012345678901234567890123x";
    if (argc == 3 && !strcmp(argv[1], "host")) say("sethostname", sethostname(argv[2], strlen(argv[2])));
    if (argc == 3 && !strcmp(argv[1], "domain")) say("setdomainname", setdomainname(argv[2], strlen(argv[2])));
    if (argc == 2 && !strcmp(argv[1], "edges")) {
        say("too long", sethostname(longer, 65));
        say("negative", syscall(SYS_sethostname, longer, -1));
        say("no address", syscall(SYS_sethostname, 0, 3));
        say("longest", sethostname(longer, 64));
        show();
        say("with a zero", sethostname("ab\0cd", 5));
        show();
        say("empty", sethostname("", 0));
        show();
        say("write", open("/proc/sys/kernel/hostname", O_WRONLY));
        say("read and write", open("/proc/sys/kernel/hostname", O_RDWR));
        say("truncate", open("/proc/sys/kernel/domainname", O_RDONLY | O_TRUNC));
        say("directory", open("/proc/sys/kernel/hostname", O_RDONLY | O_DIRECTORY));
        say("in the directory", chdir("/proc/sys/kernel"));
        say("relative", open("hostname", O_WRONLY));
    }
    if (argc == 1) show();
    return 0;
}
