"""Questions to a nameserver as packets, in every way that a program may send them."""

import ctypes
import os
import random
import socket
import struct

SERVER = ("127.0.0.1", 53)


def question(name, room=None, kind=1):
    number = random.randrange(65536)
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    message = struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0 if room is None else 1)
    message += labels + b"\0" + struct.pack(">HH", kind, 1)
    if room is not None:
        message += b"\0" + struct.pack(">HHIH", 41, room, 0, 0)
    return message


def look(asked, answer):
    """Whether it is the answer, letters of the name included; how many records; and whether it was cut."""
    end = asked.index(b"\0", 12) + 5
    same = answer[:2] == asked[:2] and answer[12:end] == asked[12:end]
    flags, _, count = struct.unpack(">HHH", answer[2:8])
    return same, count, bool(flags & 0x0200)


def udp():
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.settimeout(20)
    return made


mixed = question("API.shop.Internal")
connected = udp()
connected.connect(SERVER)
connected.send(mixed)
print("connected", *look(mixed, connected.recv(4096)))

free = udp()
free.sendto(mixed, SERVER)
answer, peer = free.recvfrom(4096)
print("not connected", *look(mixed, answer), peer)
free.sendmsg([mixed[:5], mixed[5:]], [], 0, SERVER)
answer, _, _, peer = free.recvmsg(4096)
print("sendmsg", *look(mixed, answer)[:2], peer)


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


asked = [question(name) for name in ("four.shop.internal", "alias.shop.internal", "second.other.internal")]
address = struct.pack("=H", socket.AF_INET) + struct.pack(">H", 53) + socket.inet_aton("127.0.0.1") + bytes(8)
messages = (Message * 3)()
kept = []
for message, text in zip(messages, asked):
    name, base = ctypes.create_string_buffer(address, 16), ctypes.create_string_buffer(text, len(text))
    vector = Vector(ctypes.addressof(base), len(text))
    kept += [name, base, vector]
    message.header.name, message.header.name_length = ctypes.addressof(name), 16
    message.header.vectors, message.header.count = ctypes.addressof(vector), 1
sent = ctypes.CDLL(None, use_errno=True).sendmmsg(free.fileno(), messages, 3, 0)
answers = {free.recv(4096)[:2] for _ in range(3)}
print("sendmmsg", sent, [1 if text[:2] in answers else 0 for text in asked])

large = question("large.shop.internal")
connected.send(large)
_, count, cut = look(large, connected.recv(65535))
print("large", "256" if 0 < count < 256 else count, "cut", cut)
large = question("large.shop.internal", 8192)
connected.send(large)
print("room 4096", *look(large, connected.recv(65535))[1:])


def framed(message):
    return struct.pack(">H", len(message)) + message


def read(stream):
    (length,) = struct.unpack(">H", stream.read(2))
    return stream.read(length)


large = question("large.shop.internal")
with socket.create_connection(SERVER, 20) as made:
    made.sendall(framed(large))
    print("tcp large", look(large, read(made.makefile("rb")))[1])

asked = [question("four.shop.internal"), question("second.other.internal"), large]
with socket.create_connection(SERVER, 20) as made:
    made.sendall(b"".join(framed(message) for message in asked))
    made.shutdown(socket.SHUT_WR)
    stream = made.makefile("rb")
    answers = {answer[:2]: answer for answer in (read(stream) for _ in asked)}
    counts = [look(message, answers[message[:2]])[1] for message in asked]
    print("tcp in one go", counts, "ended", stream.read() == b"")

connected.send(os.urandom(2) + b"\x01\0\0\x09" + bytes(6))
print("nonsense", connected.recv(512)[3] & 15)
