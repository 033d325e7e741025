import os, socket

print("env", os.environ["GREETING"])
print("read", open("/remote-files/file").read())
print("list", "[" + " ".join(sorted(os.listdir("/remote-files/list"))) + "]")
print("missing", str(not os.path.exists("/remote-files/missing")).lower())
with open("/remote-files/written", "w") as file:
    file.write("written")
print("write ok")
print("hostname", socket.gethostname())
s = socket.create_connection(("198.51.100.7", 7), timeout=10)
s.sendall(b"hello")
print("tcp", s.recv(100).decode())
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.settimeout(10)
u.sendto(b"packet", ("198.51.100.7", 7))
data, address = u.recvfrom(100)
print("packet", data.decode(), "%s:%d" % address)
