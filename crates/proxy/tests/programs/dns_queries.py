"""Sends DNS queries as packets, with all socket calls that a program may use."""

import ctypes
import os
import random
import socket
import struct

SERVER = ("127.0.0.1", 53)


def query(name, max_payload=None, kind=1):
    number = random.randrange(65536)
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    message = struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0 if max_payload is None else 1)
    message += labels + b"\0" + struct.pack(">HH", kind, 1)
    if max_payload is not None:
        message += b"\0" + struct.pack(">HHIH", 41, max_payload, 0, 0)
    return message


def inspect(sent, response):
    """Whether ID and name match, including the case of the name; the number of records; whether it is truncated."""
    end = sent.index(b"\0", 12) + 5
    matches = response[:2] == sent[:2] and response[12:end] == sent[12:end]
    flags, _, count = struct.unpack(">HHH", response[2:8])
    return matches, count, bool(flags & 0x0200)


def udp():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(20)
    return sock


mixed_case = query("API.shop.Internal")
connected = udp()
connected.connect(SERVER)
connected.send(mixed_case)
print("connected", *inspect(mixed_case, connected.recv(4096)))

unconnected = udp()
unconnected.sendto(mixed_case, SERVER)
response, peer = unconnected.recvfrom(4096)
print("not connected", *inspect(mixed_case, response), peer)
unconnected.sendmsg([mixed_case[:5], mixed_case[5:]], [], 0, SERVER)
response, _, _, peer = unconnected.recvmsg(4096)
print("sendmsg", *inspect(mixed_case, response)[:2], peer)


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Header(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p), ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.c_void_p), ("count", ctypes.c_size_t),
        ("control", ctypes.c_void_p), ("control_length", ctypes.c_size_t), ("flags", ctypes.c_int),
    ]


class Message(ctypes.Structure):
    _fields_ = [("header", Header), ("length", ctypes.c_uint)]


queries = [query(name) for name in ("four.shop.internal", "alias.shop.internal", "second.other.internal")]
address = struct.pack("=H", socket.AF_INET) + struct.pack(">H", 53) + socket.inet_aton("127.0.0.1") + bytes(8)
messages = (Message * 3)()
buffers = []
for message, text in zip(messages, queries):
    name, base = ctypes.create_string_buffer(address, 16), ctypes.create_string_buffer(text, len(text))
    vector = Vector(ctypes.addressof(base), len(text))
    buffers += [name, base, vector]
    message.header.name, message.header.name_length = ctypes.addressof(name), 16
    message.header.vectors, message.header.count = ctypes.addressof(vector), 1
sent = ctypes.CDLL(None, use_errno=True).sendmmsg(unconnected.fileno(), messages, 3, 0)
responses = {unconnected.recv(4096)[:2] for _ in range(3)}
print("sendmmsg", sent, [1 if text[:2] in responses else 0 for text in queries])

large = query("large.shop.internal")
connected.send(large)
_, count, truncated = inspect(large, connected.recv(65535))
print("large", "256" if 0 < count < 256 else count, "truncated", truncated)
large = query("large.shop.internal", 8192)
connected.send(large)
print("max payload 8192", *inspect(large, connected.recv(65535))[1:])


def framed(message):
    return struct.pack(">H", len(message)) + message


def read(stream):
    (length,) = struct.unpack(">H", stream.read(2))
    return stream.read(length)


large = query("large.shop.internal")
with socket.create_connection(SERVER, 20) as sock:
    sock.sendall(framed(large))
    print("tcp large", inspect(large, read(sock.makefile("rb")))[1])

queries = [query("four.shop.internal"), query("second.other.internal"), large]
with socket.create_connection(SERVER, 20) as sock:
    sock.sendall(b"".join(framed(message) for message in queries))
    sock.shutdown(socket.SHUT_WR)
    stream = sock.makefile("rb")
    responses = {response[:2]: response for response in (read(stream) for _ in queries)}
    counts = [inspect(message, responses[message[:2]])[1] for message in queries]
    print("tcp in one go", counts, "ended", stream.read() == b"")

connected.send(os.urandom(2) + b"\x01\0\0\x09" + bytes(6))
print("malformed", connected.recv(512)[3] & 15)
