"""Prints the addresses of names, one line for each name."""

import socket
import sys

for name in sys.argv[1:]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        addresses = sorted({address[0] for *_, address in found})
        text = f"{len(addresses)} addresses" if len(addresses) > 8 else " ".join(addresses)
    except socket.gaierror as error:
        text = "again" if error.errno == socket.EAI_AGAIN else "none"
    print(f"{name}: {text}")
