"""Datagrams and connections to where only the target reaches."""

import errno
import os
import select
import socket
import sys
import time

ECHO = ("10.9.0.1", 7)
NOBODY = ("10.9.0.1", 9)


def datagrams(family=socket.AF_INET):
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.settimeout(20)
    return made


def connected():
    made = datagrams()
    made.connect(ECHO)
    print(made.getpeername(), made.getsockname()[0])
    for text in (b"one", b""):
        made.send(text)
        print(made.recv(100))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    large = b"x" * 65507
    print(made.send(large), made.recv(70000) == large.upper())
    made = datagrams(socket.AF_INET6)
    made.connect(("fd00:9::1", 7))
    print(made.getpeername())
    made.send(b"six")
    print(made.recv(100))


def several():
    made = datagrams()
    for text, peer in ((b"a", ECHO), (b"b", ("127.0.0.1", 7)), (b"c", ECHO), (b"", ECHO)):
        made.sendto(text, peer)
        print(*made.recvfrom(100))
    made = datagrams(socket.AF_INET6)
    for text, peer in ((b"d", ("fd00:9::1", 7)), (b"e", ("::ffff:10.9.0.1", 7))):
        made.sendto(text, peer)
        print(*made.recvfrom(100))


def refused_datagrams():
    made = datagrams()
    made.connect(NOBODY)
    for _ in range(2):
        made.send(b"hello")
        try:
            print(made.recv(100))
        except OSError as error:
            print(errno.errorcode[error.errno])
    made = datagrams(socket.AF_INET6)
    made.connect(("fd00:9::1", 9))
    made.send(b"hello")
    try:
        print(made.recv(100))
    except OSError as error:
        print(errno.errorcode[error.errno], 6)
    # Without a connection nobody is told.
    free = datagrams()
    free.settimeout(0.2)
    free.sendto(b"hello", NOBODY)
    try:
        print("not connected", free.recv(100))
    except OSError as error:
        print("not connected", error)
    # The socket still works.
    made = datagrams()
    made.connect(NOBODY)
    made.send(b"hello")
    select.select([made], [], [], 20)
    made.connect(ECHO)
    made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    made.send(b"hello")
    print("later", made.recv(100))


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
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex(NOBODY)
    select.select([], [made], [], 20)
    print("not waiting", errno.errorcode.get(made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))
    error = datagrams().connect_ex(("192.0.2.1", 9))
    print("udp 192.0.2.1", errno.errorcode.get(error))


globals()[sys.argv[1]]()
