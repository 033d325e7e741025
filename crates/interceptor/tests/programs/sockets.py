"""Unusual uses of sockets. Each test is a function, selected by name, that prints its observations."""
import array, ctypes, errno, os, resource, select, signal, socket, struct, sys, threading

HOST, GATED, SLOW = "198.51.100.7", "198.51.100.9", "198.51.100.10"
LIBC = ctypes.CDLL(None, use_errno=True)


def stream(blocking=True):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    s.setblocking(blocking)
    return s


def datagram():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(10)
    return s


def talk(s, text=b"hello"):
    s.setblocking(True)
    s.sendall(text)
    print(s.recv(100).decode(), flush=True)


def name(number):
    return errno.errorcode.get(number, number)


def error_of(s):
    return name(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


def buffer_of(s):
    return s.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def attempt(call):
    try:
        return call()
    except OSError as error:
        return name(error.errno)


def bound_to_device():
    devices = sorted(os.listdir("/sys/class/net"), key=lambda device: device == "lo")
    for s in [stream(), stream(False), datagram()]:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, devices[0].encode())
        if s.type == socket.SOCK_STREAM and not s.getblocking():
            print(name(s.connect_ex((HOST, 7))))
            select.select([], [s], [])
        else:
            s.connect((HOST, 7))
        talk(s)


def edge_triggered():
    s = stream(False)
    poll = select.epoll()
    print(name(s.connect_ex((GATED, 7))))
    poll.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    print("events before", poll.poll(0.2))
    print("waiting", flush=True)
    print("writable", [event for _, event in poll.poll(10)] == [select.EPOLLOUT])
    print("error", error_of(s), error_of(s))
    # As on Linux, the first repeated connect succeeds.
    print(s.connect_ex((GATED, 7)), name(s.connect_ex((GATED, 7))))
    s.send(b"edge")
    while not poll.poll(10)[0][1] & select.EPOLLIN:
        pass
    print(s.recv(100))


def buffers():
    """The send buffer is restored after a failure, even if the program set it."""
    for chosen in (None, 50000):
        s = stream(False)
        if chosen:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, chosen)
        before = buffer_of(s)
        s.connect_ex((HOST, 9))
        select.select([], [s], [], 10)
        print(error_of(s), buffer_of(s) == before)
        s.connect_ex((HOST, 7))
        s.connect_ex((HOST, 7))
        select.select([], [s], [], 10)
        print(error_of(s), buffer_of(s) == before if chosen else buffer_of(s) >= before)
        talk(s)


def dissolve(s):
    nowhere = struct.pack("H14x", socket.AF_UNSPEC)
    return LIBC.connect(s.fileno(), nowhere, len(nowhere))


def unspecified():
    s = stream(False)
    before = buffer_of(s)
    print(name(s.connect_ex((GATED, 7))))
    print("dissolved", dissolve(s), buffer_of(s) == before)
    print(name(s.connect_ex((HOST, 7))))
    select.select([], [s], [], 10)
    talk(s)
    print("waiting", flush=True)
    # The first attempt succeeds now, but is no longer used.
    for _ in range(20):
        talk(s)
    print(s.getpeername())
    u = datagram()
    u.sendto(b"one", (HOST, 7))
    u.connect((HOST, 7))
    print(u.recv(10), u.getpeername())
    print("dissolved", dissolve(u), attempt(u.getpeername))
    print(u.sendto(b"two", (HOST, 7)), u.recvfrom(10))


def passed():
    s = stream()
    s.connect((HOST, 7))
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        received = socket.recv_fds(theirs, 10, 1)[1][0]
        copy = socket.socket(fileno=received)
        print(copy.getpeername())
        talk(copy, b"passed")
        os._exit(0)
    socket.send_fds(ours, [b"x"], [s.fileno()])
    os.wait()
    copy = s.dup()
    s.close()
    print(copy.getpeername())
    talk(copy, b"duplicated")


def forked():
    s = stream()
    if os.fork() == 0:
        s.connect((HOST, 7))
        os._exit(0)
    os.wait()
    print(s.getpeername())
    talk(s)
    # Connecting when the other process closes its copy.
    s = stream(False)
    print(name(s.connect_ex((GATED, 7))))
    if os.fork() == 0:
        s.close()
        os._exit(0)
    os.wait()
    print("waiting", flush=True)
    select.select([], [s], [], 10)
    talk(s)


def closed():
    """Closed while connecting; the descriptor number is then reused by another socket."""
    s = stream(False)
    print(name(s.connect_ex((GATED, 7))))
    number = s.fileno()
    s.close()
    t = stream()
    print(t.fileno() == number)
    t.connect((HOST, 7))
    print("waiting", flush=True)
    for _ in range(20):
        talk(t)


def fast_open():
    s = stream()
    print(attempt(lambda: s.sendto(b"hello", socket.MSG_FASTOPEN, (HOST, 7))))
    print(attempt(lambda: s.sendmsg([b"hello"], [], socket.MSG_FASTOPEN, (HOST, 7))))
    s.setsockopt(socket.IPPROTO_TCP, 30, 1)
    s.connect((HOST, 7))
    talk(s)
    # On a connected stream the address is ignored.
    print(s.sendto(b"again", (HOST, 9)), s.recv(10))


def many_datagrams():
    """More sockets than descriptor numbers below the limit of select."""
    sockets = [datagram() for _ in range(300)]
    numbers = [s.fileno() for s in sockets]
    print(len(set(numbers)), min(numbers), max(numbers) > 1023)
    for index, s in enumerate(sockets):
        s.sendmsg([b"number %d" % index], [], 0, (HOST, 7))
    for index, s in enumerate(sockets):
        got = s.recvmsg(100)
        if got[0] != b"NUMBER %d" % index or got[3] != (HOST, 7):
            print(index, got)
    first = sockets[:100]
    for s in first:
        s.sendto(b"select", (HOST, 7))
    waiting, got = set(first), 0
    while waiting:
        for s in select.select(list(waiting), [], [], 10)[0]:
            got += s.recv(10) == b"SELECT"
            waiting.discard(s)
    print("selected", got)


def low_limit():
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    sockets = []
    while isinstance(s := attempt(datagram), socket.socket):
        sockets.append(s)
    print(s, max(s.fileno() for s in sockets))
    sockets.pop().close()
    print(sockets[0].sendto(b"one", (HOST, 7)), sockets[0].recvfrom(10))
    sockets[1].connect((HOST, 7))
    sockets[1].send(b"two")
    print(sockets[1].recv(10))
    t = stream()
    t.connect((HOST, 7))
    talk(t)


def slow_reader():
    """A slow reader blocks the writer."""
    s = stream()
    s.connect((SLOW, 7))
    s.setblocking(False)
    sent, block = 0, b"x" * 65536
    while True:
        try:
            sent += s.send(block)
        except BlockingIOError:
            if not select.select([], [s], [], 0.3)[1]:
                break
    print("stopped", 0 < sent < 64 << 20)
    print("waiting", flush=True)
    s.setblocking(True)
    s.shutdown(socket.SHUT_WR)
    got = 0
    while data := s.recv(1 << 20):
        got += len(data)
    print("all", got == sent)


def thousands():
    """All concurrently in one thread, then all are used."""
    count = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100,) * 2)
    sockets = [stream(False) for _ in range(count)]
    poll = select.epoll()
    results = set()
    for s in sockets:
        results.add(name(s.connect_ex((HOST, 7))))
        poll.register(s, select.EPOLLOUT | select.EPOLLONESHOT)
    ready = 0
    while ready < count:
        ready += len(poll.poll(30))
    print(results, {error_of(s) for s in sockets})
    for index, s in enumerate(sockets):
        s.setblocking(True)
        s.sendall(b"number %d" % index)
    print("right", sum(s.recv(100) == b"NUMBER %d" % index for index, s in enumerate(sockets)))


def waiting_threads():
    """Many threads, each in a blocking call, and one that is not."""
    count = int(sys.argv[2])
    threading.stack_size(65536)
    done = []

    def wait():
        s = stream()
        s.connect((GATED, 7))
        s.sendall(b"x")
        done.append(s.recv(1))

    threads = [threading.Thread(target=wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    s = stream()
    s.connect((HOST, 7))
    talk(s)
    print(open("/remote-files/file").read(), len(done))
    print("waiting", flush=True)
    for thread in threads:
        thread.join()
    print(len(done))


globals()[sys.argv[1]]()
