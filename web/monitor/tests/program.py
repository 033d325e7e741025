"""Stands in for the service: reads files, resolves DNS names, connects, and serves requests."""
import http.server
import socket
import threading
import time


class Program(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = b"from the program\n"
        self.send_response(503 if self.path == "/broken" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def generate_activity():
    while True:
        open("/etc/hostname").read()
        for number in range(4):
            try:
                open(f"/srv/shop/missing-{number}")
            except OSError:
                pass
        for address in [("127.0.0.1", 9), ("127.0.0.1", 8080)]:
            try:
                socket.create_connection(address, timeout=2).close()
            except OSError:
                pass
        try:
            socket.getaddrinfo("nowhere.invalid", 80)
        except OSError:
            pass
        time.sleep(0.5)


threading.Thread(target=generate_activity, daemon=True).start()
http.server.ThreadingHTTPServer(("", 8080), Program).serve_forever()
