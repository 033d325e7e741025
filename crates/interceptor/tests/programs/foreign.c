/* Makes a call of the 32-bit interface from a 64-bit program. Exits with 77 if that is not supported. */
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>

static void cannot(int signal) {
    (void)signal;
    _Exit(77);
}

int main(void) {
#if defined(__x86_64__)
    signal(SIGSEGV, cannot);
    signal(SIGILL, cannot);
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(45), "b"(0) : "memory", "r8", "r9", "r10", "r11");
    return result == -38 ? 77 : 0;
#else
    (void)cannot;
    return 77;
#endif
}
