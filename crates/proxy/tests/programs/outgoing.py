"""Datagrams and connections to addresses that only the target reaches."""

import errno
import os
import select
import socket
import sys
import time

ECHO = ("10.9.0.1", 7)
CLOSED = ("10.9.0.1", 9)


def datagrams(family=socket.AF_INET):
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.settimeout(20)
    return sock


def connected():
    sock = datagrams()
    sock.connect(ECHO)
    print(sock.getpeername(), sock.getsockname()[0])
    for text in (b"one", b""):
        sock.send(text)
        print(sock.recv(100))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    large = b"x" * 65507
    print(sock.send(large), sock.recv(70000) == large.upper())
    sock = datagrams(socket.AF_INET6)
    sock.connect(("fd00:9::1", 7))
    print(sock.getpeername())
    sock.send(b"six")
    print(sock.recv(100))


def several():
    sock = datagrams()
    for text, peer in ((b"a", ECHO), (b"b", ("127.0.0.1", 7)), (b"c", ECHO), (b"", ECHO)):
        sock.sendto(text, peer)
        print(*sock.recvfrom(100))
    sock = datagrams(socket.AF_INET6)
    for text, peer in ((b"d", ("fd00:9::1", 7)), (b"e", ("::ffff:10.9.0.1", 7))):
        sock.sendto(text, peer)
        print(*sock.recvfrom(100))


def refused_datagrams():
    sock = datagrams()
    sock.connect(CLOSED)
    for _ in range(2):
        sock.send(b"hello")
        try:
            print(sock.recv(100))
        except OSError as error:
            print(errno.errorcode[error.errno])
    sock = datagrams(socket.AF_INET6)
    sock.connect(("fd00:9::1", 9))
    sock.send(b"hello")
    try:
        print(sock.recv(100))
    except OSError as error:
        print(errno.errorcode[error.errno], 6)
    # A socket that is not connected gets no error.
    free = datagrams()
    free.settimeout(0.2)
    free.sendto(b"hello", CLOSED)
    try:
        print("not connected", free.recv(100))
    except OSError as error:
        print("not connected", error)
    # The socket still works.
    sock = datagrams()
    sock.connect(CLOSED)
    sock.send(b"hello")
    select.select([sock], [], [], 20)
    sock.connect(ECHO)
    sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    sock.send(b"hello")
    print("later", sock.recv(100))


def wait_for(name):
    folder = os.path.dirname(os.readlink("/proc/self/fd/1"))
    while not os.path.exists(os.path.join(folder, name)):
        time.sleep(0.01)


def closed():
    one, other = datagrams(), datagrams()
    one.connect(ECHO)
    one.send(b"x")
    one.recv(100)
    other.sendto(b"x", ECHO)
    other.recv(100)
    print("open")
    wait_for("close")
    one.close()
    other.close()
    wait_for("end")


def failures():
    for address in ("10.9.0.1", "fd00:9::1", "127.0.0.1", "192.0.2.1", "203.0.113.1", "198.51.100.1", "2001:db8::1"):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        error = socket.socket(family, socket.SOCK_STREAM).connect_ex((address, 9))
        print(address, errno.errorcode.get(error))
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex(CLOSED)
    select.select([], [sock], [], 20)
    print("not waiting", errno.errorcode.get(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))
    error = datagrams().connect_ex(("192.0.2.1", 9))
    print("udp 192.0.2.1", errno.errorcode.get(error))


globals()[sys.argv[1]]()
