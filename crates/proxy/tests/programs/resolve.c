/* Prints the addresses of names, one line for each name. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static int compare(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

int main(int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found;
        int error = getaddrinfo(arguments[i], NULL, &hints, &found);
        printf("%s:", arguments[i]);
        if (error != 0) {
            printf(" %s\n", error == EAI_AGAIN ? "again" : "none");
            continue;
        }
        char *texts[1024];
        int length = 0;
        for (struct addrinfo *each = found; each && length < 1024; each = each->ai_next) {
            char text[128];
            getnameinfo(each->ai_addr, each->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST);
            texts[length++] = strdup(text);
        }
        qsort(texts, length, sizeof *texts, compare);
        if (length > 8) {
            printf(" %d addresses", length);
            length = 0;
        }
        for (int j = 0; j < length; j++) printf(" %s", texts[j]);
        printf("\n");
        freeaddrinfo(found);
    }
    return 0;
}
