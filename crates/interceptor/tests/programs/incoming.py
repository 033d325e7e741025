"""Servers. Each test is a function, selected by name, that prints its observations."""
import array, ctypes, errno, os, resource, select, signal, socket, struct, sys, threading, time

LIBC = ctypes.CDLL(None, use_errno=True)
ARGUMENTS = sys.argv[2:]


def listener(address=("127.0.0.1", 0), family=socket.AF_INET, protocol=0, port_is_shared=False):
    s = socket.socket(family, socket.SOCK_STREAM, protocol)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if port_is_shared:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(address)
    s.listen(4096)
    return s


def name(number):
    return errno.errorcode.get(number, number)


def attempt(call):
    try:
        return call()
    except OSError as error:
        return name(error.errno)


def wait():
    """Waits until the test resumes the program."""
    print("waiting")
    while not os.path.exists(os.environ["RESUME_FILE"]):
        time.sleep(0.002)
    os.remove(os.environ["RESUME_FILE"])


def reply(connection):
    connection.setblocking(True)
    while data := connection.recv(1000):
        connection.sendall(data.upper())
    connection.close()


def serve(connection, address):
    """Prints all addresses, and replies in upper case."""
    print(address, connection.getpeername(), connection.getsockname())
    reply(connection)


def blocking():
    s = listener()
    for _ in range(3):
        serve(*s.accept())


def bound():
    s = listener((ARGUMENTS[0], 0))
    print(s.getsockname()[0] == ARGUMENTS[0])
    serve(*s.accept())


def nonblocking():
    s = listener()
    s.setblocking(False)
    print(attempt(s.accept))
    for _ in range(3):
        select.select([s], [], [])
        serve(*s.accept())
    print(attempt(s.accept))


def timeout():
    s = listener()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 0, 50000))
    print(attempt(s.accept))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 30, 0))
    serve(*s.accept())


def dual():
    """A dual-stack socket, unless IPV6_V6ONLY is set."""
    s = socket.socket(socket.AF_INET6)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(ARGUMENTS[1]))
    s.bind((ARGUMENTS[0], 0))
    s.listen()
    for _ in range(2):
        serve(*s.accept())


def version4():
    s = listener(("0.0.0.0", 0))
    connection, address = s.accept()
    print(address[0].startswith("127."), connection.getpeername() == address)
    reply(connection)


def multipath():
    s = listener(protocol=262)
    serve(*s.accept())


def unbound():
    """The kernel chooses a port when the socket starts to listen."""
    s = socket.socket()
    s.listen()
    print(s.getsockname()[1])
    serve(*s.accept())


def refused():
    s = socket.socket()
    s.bind(("127.0.0.1", int(ARGUMENTS[0])))
    print(attempt(s.listen), attempt(s.accept))
    s = listener()
    serve(*s.accept())


def taken():
    """Another program uses the port."""
    port = int(ARGUMENTS[0])
    s = listener(("127.0.0.1", port), port_is_shared=True)
    print(s.getsockname()[1] == port)
    serve(*s.accept())
    # On localhost it reaches its own listener.
    c = socket.create_connection(("127.0.0.1", port))
    connection, address = s.accept()
    print(address == c.getsockname())
    # As without supervision: it fails without SO_REUSEPORT, and succeeds any number of times with it.
    print(attempt(lambda: listener(("127.0.0.1", port))))
    t = listener(("127.0.0.1", port), port_is_shared=True)
    print(t.getsockname()[1] == port)
    s.close()
    serve(*t.accept())
    t.close()
    s = listener(("127.0.0.1", port))
    print(s.getsockname()[1] == port)
    serve(*s.accept())


def low_port():
    s = listener(("127.0.0.1", int(ARGUMENTS[0])))
    print(s.getsockname())
    serve(*s.accept())


def foreign_address():
    s = listener(("10.1.2.3", int(ARGUMENTS[0])))
    print(s.getsockname()[0])
    serve(*s.accept())


def twice():
    """As without supervision: the application itself uses the port."""
    s = listener()
    print(attempt(lambda: listener(s.getsockname())))


def several():
    sockets = [listener() for _ in range(3)]
    for s in reversed(sockets):
        serve(*s.accept())


def workers(sockets):
    """Many processes, each with a socket."""
    count = int(ARGUMENTS[0])
    readable, writable = os.pipe()
    children = []
    for s in sockets:
        if not (child := os.fork()):
            while True:
                connection, address = s.accept()
                text = f"{address[0]} {connection.getpeername() == address}\n"
                reply(connection)
                os.write(writable, text.encode())
        children.append(child)
    lines = []
    while len(lines) < count:
        lines += os.read(readable, 4096).decode().splitlines()
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.wait()
    print("".join(line + "\n" for line in sorted(lines)), end="")


def forked():
    workers([listener()] * 4)


def shared_port():
    first = listener(port_is_shared=True)
    workers([first] + [listener(first.getsockname(), port_is_shared=True) for _ in range(3)])


def threads():
    """Many threads accept from one socket; each records its peer."""
    count = int(ARGUMENTS[0])
    s = listener()
    lock, seen, done = threading.Lock(), [], threading.Event()

    def work(wants_address):
        while True:
            if wants_address:
                connection, address = s.accept()
            else:
                connection = socket.socket(fileno=LIBC.accept(s.fileno(), None, None))
                address = connection.getpeername()
            right = connection.getpeername() == address
            reply(connection)
            with lock:
                seen.append((address, right))
                if len(seen) == count:
                    done.set()

    for index in range(16):
        wants_address = ARGUMENTS[1] == "all" or index % 2 == 0
        threading.Thread(target=work, args=[wants_address], daemon=True).start()
    done.wait()
    print(len(set(seen)), all(right for _, right in seen))
    sys.stdout.flush()
    os._exit(0)


def passed():
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        received = socket.socket(fileno=socket.recv_fds(theirs, 10, 1)[1][0])
        serve(*received.accept())
        os._exit(0)
    s = listener()
    socket.send_fds(ours, [b"x"], [s.fileno()])
    s.close()
    os.wait()


def reopened():
    for _ in range(2):
        s = listener()
        serve(*s.accept())
        s.close()
        wait()


def local_clients():
    """Local clients keep their addresses."""
    s = listener()
    for _ in range(3):
        c = socket.create_connection(s.getsockname())
        connection, address = s.accept()
        print(address == c.getsockname() == connection.getpeername(), connection.getsockname() == s.getsockname())
    print("ready")
    serve(*s.accept())


def hasty():
    """Clients that have closed before they are accepted."""
    s = listener()
    wait()
    for _ in range(3):
        connection, address = s.accept()
        print(address, connection.getpeername(), connection.recv(10), connection.recv(10))


def use_all_descriptors():
    """Returns the previous limits, and the descriptors to keep open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(n) for n in os.listdir("/proc/self/fd")), hard))
    held = []
    while isinstance(f := attempt(lambda: os.dup(0)), int):
        held.append(f)
    return (soft, hard), held


def descriptors():
    """The connection is kept while there is no free descriptor."""
    s = listener()
    connections = [s.accept()]
    s.setblocking(False)
    limits, held = use_all_descriptors()
    print("waiting")
    poll = select.poll()
    poll.register(s, select.POLLIN)
    for _ in range(3):
        print(poll.poll(10000) != [], attempt(s.accept))
    # The length of the accept queue.
    print(struct.unpack("I", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[24:28])[0])
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    print(poll.poll(10000) != [])
    serve(*s.accept())
    print(attempt(s.accept))


def lost_worker():
    """The connections of a killed worker are reset, even if another one listens on its port."""
    s = listener(port_is_shared=True)
    address = s.getsockname()
    if not (child := os.fork()):
        _, held = use_all_descriptors()
        print(attempt(s.accept))
        signal.pause()
    s.close()
    # The second listener opens after the connection was accepted by the first.
    wait()
    other = listener(address, port_is_shared=True)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    serve(*other.accept())


def accept_raw(s, address, length, flags=0):
    result = LIBC.accept4(s.fileno(), address, length, flags)
    return result if result >= 0 else name(ctypes.get_errno())


def arguments():
    """Unusual lengths, addresses and flags."""
    s = listener()
    s.setblocking(False)

    def ready():
        select.select([s], [], [])

    def shown(room, flags=0):
        ready()
        address, length = (ctypes.c_ubyte * 32)(*[0xEE] * 32), ctypes.c_int(room)
        result = accept_raw(s, address, ctypes.byref(length), flags)
        return result, bytes(address), length.value

    wide = shown(32)
    print(wide[1][:8].hex(), wide[1][16:].hex() == "ee" * 16, wide[2])
    print(struct.unpack("H", wide[1][:2])[0] == socket.AF_INET)
    cut = shown(6)
    print(cut[1][:8].hex(), cut[2])
    print(shown(0)[1:] == (b"\xee" * 32, 16))
    print(shown(-1)[0])
    ready()
    print(accept_raw(s, ctypes.c_void_p(8), ctypes.byref(ctypes.c_int(16))))
    ready()
    print(accept_raw(s, (ctypes.c_ubyte * 32)(), ctypes.c_void_p(8)))
    ready()
    print(accept_raw(s, (ctypes.c_ubyte * 32)(), ctypes.byref(ctypes.c_int(16)), 1))
    for flags in (0, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK):
        number = shown(16, flags)[0]
        print(os.get_inheritable(number), os.get_blocking(number))
    # Without a buffer for an address, which is queried later.
    ready()
    connection = socket.socket(fileno=accept_raw(s, None, None))
    print(connection.getpeername(), connection.getsockname())


def shut_down():
    s = listener()
    threading.Timer(0.2, lambda: s.shutdown(socket.SHUT_RD)).start()
    print(attempt(s.accept))
    s.listen()
    serve(*s.accept())


def killed():
    """Processes that are killed in accept leave connections to others, and free the port."""
    s = listener()
    children = []
    for _ in range(4):
        if not (child := os.fork()):
            s.accept()
            os._exit(1)
        children.append(child)

    def is_in(child, *calls):
        return open(f"/proc/{child}/syscall").read().split()[0] in calls

    def waits(child):
        return is_in(child, "43", "202", "288", "242")

    def receives(child):
        return is_in(child, "45", "207")

    while not all(waits(child) for child in children):
        pass
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    print("killed")
    serve(*s.accept())
    if not (child := os.fork()):
        s.accept()
    while not waits(child):
        pass
    address = s.getsockname()
    s.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    # The port is free now.
    s = attempt(lambda: listener(address))
    print(s if isinstance(s, str) else s.getsockname() == address)
    if not (child := os.fork()):
        u = datagram(address)
        u.setblocking(True)
        u.recvfrom(10)
    while not receives(child):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    u = attempt(lambda: datagram(address))
    print(u if isinstance(u, str) else u.getsockname() == address)


def http():
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.client_address[0].encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    ThreadingHTTPServer(("127.0.0.1", 0), Handler).serve_forever()


def asynchronous():
    import asyncio

    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        body = writer.get_extra_info("peername")[0].encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async def main():
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        await server.serve_forever()

    asyncio.run(main())


def datagram(address=("127.0.0.1", 0), family=socket.AF_INET):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.settimeout(30)
    s.bind(address)
    return s


def udp():
    port = int(ARGUMENTS[0])
    s = datagram(("127.0.0.1", port))
    s.setblocking(True)
    # No datagram has been received yet when it starts to wait.
    print("waiting")
    data, client = s.recvfrom(100)
    print(data, client, s.sendto(data.upper(), client))
    data, _, _, client = s.recvmsg(100)
    print(data, client, s.sendmsg([data.upper()], [], 0, client))
    # A local client keeps its address.
    t = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    t.sendto(b"here", s.getsockname())
    data, here = s.recvfrom(100)
    print(data, here[1] == t.getsockname()[1])
    s.sendto(b"there", here)
    print(t.recvfrom(100)[0])
    # Another client, and both at once.
    clients = [s.recvfrom(100) for _ in range(2)]
    for data, client in sorted(clients):
        print(data, client)
    for data, client in clients:
        s.sendto(data.upper(), client)
    s.connect(client := clients[0][1])
    print(s.getpeername() == client)
    s.send(b"connected")
    print(s.getsockname()[1] == port)


def udp_dual():
    s = datagram(("::", int(ARGUMENTS[0])), socket.AF_INET6)
    for _ in range(2):
        data, client = s.recvfrom(100)
        print(data, client[:2])
        s.sendto(data.upper(), client)


def udp_version4():
    """The reply reaches a client whose address cannot be represented."""
    s = datagram(("127.0.0.1", int(ARGUMENTS[0])))
    data, client = s.recvfrom(100)
    print(data, client[0].startswith("127."))
    s.sendto(data.upper(), client)


def udp_shared_port():
    """Several sockets share one port: the one that receives a datagram replies."""
    sockets = []
    for _ in range(4):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.bind(("127.0.0.1", int(ARGUMENTS[0])))
        sockets.append(s)
    seen, used = [], set()
    while len(seen) < 40:
        for s in select.select(sockets, [], [])[0]:
            data, client = s.recvfrom(100)
            seen.append((client[0], data == client[0].encode()))
            used.add(s.fileno())
            s.sendto(data.upper(), client)
    print(len(set(seen)), all(right for _, right in seen), len(used) > 1)


def udp_many():
    """Several datagrams in one call."""
    s = datagram(("127.0.0.1", int(ARGUMENTS[0])))
    s.setblocking(True)
    count = 4

    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    class Header(ctypes.Structure):
        _fields_ = [("name", ctypes.c_void_p), ("name_length", ctypes.c_uint), ("vectors", ctypes.c_void_p),
                    ("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_length", ctypes.c_size_t),
                    ("flags", ctypes.c_int), ("padding", ctypes.c_int), ("length", ctypes.c_uint)]

    headers = (Header * count)()
    names, buffers, vectors = [], [], []
    for header in headers:
        names.append((ctypes.c_ubyte * 16)())
        buffers.append((ctypes.c_ubyte * 100)())
        vectors.append(Vector(ctypes.addressof(buffers[-1]), 100))
        header.name, header.name_length = ctypes.addressof(names[-1]), 16
        header.vectors, header.count = ctypes.addressof(vectors[-1]), 1
    wait()
    got = 0
    while got < count:
        place = ctypes.byref(headers, got * ctypes.sizeof(Header))
        n = LIBC.recvmmsg(s.fileno(), place, count - got, 0x10000, None)
        if n < 0:
            print(name(ctypes.get_errno()))
            return
        got += n
    for index, header in enumerate(headers):
        port, = struct.unpack(">H", bytes(names[index])[2:4])
        print(bytes(buffers[index])[:header.length], socket.inet_ntoa(bytes(names[index])[4:8]), port)
        vectors[index].length = header.length
    print(LIBC.sendmmsg(s.fileno(), headers, count, 0))


globals()[sys.argv[1]]()
