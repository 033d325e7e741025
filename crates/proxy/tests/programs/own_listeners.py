"""Connects to its own listeners on localhost."""

import errno
import socket
import subprocess
import sys


def connect(name, address, port):
    try:
        sock = socket.create_connection((address, port), 10)
    except OSError as error:
        return print(name, errno.errorcode[error.errno])
    sock.close()
    print(name, "reached", flush=True)


listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
connect("127.0.0.1", "127.0.0.1", port)
connect("0.0.0.0", "0.0.0.0", port)
connect("localhost", "localhost", port)
child = f"import socket; socket.create_connection(('127.0.0.1', {port}), 10); print('by a child reached')"
subprocess.run([sys.executable, "-c", child], check=True)

listener6 = socket.create_server(("::", 0), family=socket.AF_INET6)
connect("::1", "::1", listener6.getsockname()[1])
listener.close()
connect("closed", "127.0.0.1", port)
connect("other port", "127.0.0.1", 1)


def datagrams(name, family, address):
    server = socket.socket(family, socket.SOCK_DGRAM)
    server.bind((address, 0))
    server.settimeout(10)
    client = socket.socket(family, socket.SOCK_DGRAM)
    client.settimeout(10)
    client.sendto(b"ping", server.getsockname())
    message, peer = server.recvfrom(100)
    server.sendto(b"pong", peer)
    print(name, message, client.recv(100))


datagrams("datagrams", socket.AF_INET, "127.0.0.1")
datagrams("datagrams6", socket.AF_INET6, "::1")
