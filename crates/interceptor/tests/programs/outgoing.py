"""Connections to addresses that only the target reaches. Each test is a function, selected by name, that prints its observations."""
import errno, os, select, signal, socket, sys, tempfile, threading, time

HOST, HOST6, GATED, UNREACHABLE = "198.51.100.7", "2001:db8::7", "198.51.100.9", "198.51.100.8"


def stream(family=socket.AF_INET):
    return socket.socket(family, socket.SOCK_STREAM)


def talk(s, text=b"hello"):
    s.sendall(text)
    print(s.recv(100).decode())


def tcp():
    s = stream()
    s.connect((HOST, 7))
    print(s.getpeername(), s.getsockname())
    talk(s)
    s.shutdown(socket.SHUT_WR)
    print("end", s.recv(10))


def tcp6():
    s = stream(socket.AF_INET6)
    s.connect((HOST6, 7))
    print(s.getpeername())
    talk(s)
    mapped = stream(socket.AF_INET6)
    mapped.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    mapped.connect(("::ffff:" + HOST, 7))
    print(mapped.getpeername()[:2], mapped.getsockname()[:2])
    talk(mapped)


def refused():
    for address in ((HOST, 9), (UNREACHABLE, 7)):
        s = stream()
        try:
            s.connect(address)
        except OSError as error:
            print(errno.errorcode[error.errno])
    # The socket can be used again.
    s.connect((HOST, 7))
    talk(s)
    try:
        s.connect((HOST, 7))
    except OSError as error:
        print(errno.errorcode[error.errno])


def events(s, timeout=0):
    poll = select.poll()
    poll.register(s, select.POLLIN | select.POLLOUT)
    return [event for _, event in poll.poll(timeout)]


def nonblocking():
    """Prints `waiting` when the test must open the gate."""
    s = stream()
    s.setblocking(False)
    print(errno.errorcode[s.connect_ex((GATED, 7))])
    print("not writable", events(s, 300) == [])
    print(errno.errorcode[s.connect_ex((GATED, 7))])
    try:
        s.getpeername()
    except OSError as error:
        print(errno.errorcode[error.errno])
    print("error", s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    buffer = s.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    print("waiting", flush=True)
    print("writable", events(s, 10000) == [select.POLLOUT])
    print("error", s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    print(s.getpeername(), s.getsockname())
    print("buffer", s.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > buffer)
    s.setblocking(True)
    talk(s)
    big = os.urandom(1 << 16).hex().upper().encode() * 8
    threading.Thread(target=lambda: s.sendall(big)).start()
    got = b""
    while len(got) < len(big):
        got += s.recv(1 << 16)
    print("big", got == big)


def nonblocking_refused():
    s = stream()
    s.setblocking(False)
    print(errno.errorcode[s.connect_ex((GATED, 9))])
    print("not writable", events(s) == [])
    print("waiting", flush=True)
    got = events(s, 10000)
    print("error", bool(got and got[0] & select.POLLERR))
    print(errno.errorcode[s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)])
    print(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    s.setblocking(True)
    # Linux reports a failed connection to the next connect once more, and only the one after that tries again.
    print(errno.errorcode[s.connect_ex((HOST, 7))])
    s.connect((HOST, 7))
    talk(s)


def send_timeout():
    s = stream()
    s.settimeout(None)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, b"\0" * 8 + (50000).to_bytes(8, "little"))
    print(errno.errorcode[s.connect_ex((GATED, 7))])
    print("waiting", flush=True)
    print("writable", events(s, 10000) == [select.POLLOUT])
    talk(s)


def unix_refused():
    # It listens on this machine, but the host hides it.
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "refused.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        print(errno.errorcode.get(socket.socket(socket.AF_UNIX).connect_ex(path)))


def unix():
    s = socket.socket(socket.AF_UNIX)
    s.connect("/remote-files/echo.sock")
    print(s.getpeername())
    talk(s)


def unix_packets():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect("/remote-files/echo.sock")
    s.send(b"one")
    s.send(b"two")
    print(s.recv(100), s.recv(100))


def unix_relative():
    here = os.getcwd()
    for folder in ["/remote-files/folder", "/"]:
        os.chdir(folder)
        s = socket.socket(socket.AF_UNIX)
        s.connect(os.path.relpath("/remote-files/echo.sock"))
        print(s.getpeername())
        talk(s)
    # From a virtual working directory to this machine.
    with tempfile.TemporaryDirectory() as folder:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.path.join(folder, "here.sock"))
        listener.listen()
        os.chdir("/remote-files/folder")
        s = socket.socket(socket.AF_UNIX)
        s.connect("../.." + folder + "/here.sock")
        print(s.getpeername() == folder + "/here.sock")
        os.chdir(here)


def unix_bound():
    s = socket.socket(socket.AF_UNIX)
    try:
        s.bind("/remote-files/made.sock")
    except OSError as error:
        print(errno.errorcode[error.errno])


def local():
    server = stream()
    server.bind(("127.0.0.1", 0))
    server.listen()
    s = stream()
    s.connect(server.getsockname())
    other, address = server.accept()
    print(address == s.getsockname(), s.getpeername() == server.getsockname())
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    u.bind(("127.0.0.1", 0))
    v = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    v.sendto(b"x", u.getsockname())
    data, address = u.recvfrom(10)
    print(data, address == ("127.0.0.1", v.getsockname()[1]))
    print(v.sendmsg([b"a", b"b"], [], 0, u.getsockname()), u.recvmsg(10)[0])


def datagram(family=socket.AF_INET):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.settimeout(10)
    return s


def udp():
    s = datagram()
    s.connect((HOST, 7))
    print(s.getpeername(), s.getsockname())
    s.send(b"one")
    print(s.recv(10))
    s.send(b"two")
    print(s.recvfrom(10))
    s.send(b"three")
    print(s.recvmsg(10))
    # Not connected.
    u = datagram()
    print(u.sendto(b"four", (HOST, 7)), u.recvfrom(10))
    print(u.sendmsg([b"s", b"ix"], [], 0, (HOST, 7)), u.recvmsg(10, 100))
    big = b"y" * 60000
    print(u.sendto(big, (HOST, 7)), u.recvfrom(65536)[0] == big.upper())
    v = datagram(socket.AF_INET6)
    print(v.sendto(b"seven", (HOST6, 7)), v.recvfrom(10))
    # No datagram has been received yet.
    w = datagram()
    w.setblocking(False)
    w.sendto(b"", (HOST, 7))
    select.select([w], [], [], 10)
    print(w.recvfrom(10))
    try:
        w.recvfrom(10)
    except BlockingIOError:
        print("EAGAIN")


def many():
    """Many concurrent connections from threads."""
    def one(number):
        s = stream()
        s.connect((HOST, 7))
        text = b"number %d" % number
        s.sendall(text)
        got = s.recv(100)
        assert got == text.upper(), got
        s.close()
    threads = [threading.Thread(target=one, args=(number,)) for number in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("done")


def slow_does_not_delay():
    """One thread connects to a server that does not respond; the others continue."""
    slow = threading.Thread(target=lambda: stream().connect((GATED, 7)))
    slow.start()
    for _ in range(50):
        s = stream()
        s.connect((HOST, 7))
        talk(s)
        s.close()
    print(slow.is_alive())
    print("waiting", flush=True)
    slow.join()


globals()[sys.argv[1]]()
