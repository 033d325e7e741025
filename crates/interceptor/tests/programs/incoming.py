"""Servers. Each test is a function, chosen by name, and prints what it sees."""
import errno, os, select, socket, sys


def listener(address=("127.0.0.1", 0), family=socket.AF_INET, **options):
    s = socket.socket(family)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(address)
    s.listen()
    return s


def name(number):
    return errno.errorcode.get(number, number)


def attempt(call):
    try:
        return call()
    except OSError as error:
        return name(error.errno)


def serve(connection, address, own=None):
    """Tells all names, and answers in upper case."""
    print(address, connection.getpeername(), connection.getsockname(), flush=True)
    while data := connection.recv(1000):
        connection.sendall(data.upper())
    connection.close()


def blocking():
    s = listener()
    for _ in range(3):
        serve(*s.accept())


def nonblocking():
    s = listener()
    s.setblocking(False)
    print(attempt(s.accept), flush=True)
    for _ in range(3):
        select.select([s], [], [])
        connection, address = s.accept()
        connection.setblocking(True)
        serve(connection, address)
    print(attempt(s.accept))


globals()[sys.argv[1]]()
