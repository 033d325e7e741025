"""Connects to a port of each address, and prints the greetings."""

import socket
import sys


def greeting(address, port):
    try:
        with socket.create_connection((address, port), 5) as sock:
            return sock.makefile().read()
    except OSError:
        return "not reached"


port, *addresses = sys.argv[1:]
print(*[greeting(address, int(port)) for address in addresses])
