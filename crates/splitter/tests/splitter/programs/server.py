"""A server of Python's standard library that says who it is. Arguments: its name and the version of HTTP."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME, VERSION = sys.argv[1:]


class Handler(BaseHTTPRequestHandler):
    protocol_version = VERSION

    def do_GET(self):
        self.answer(b"")

    def do_HEAD(self):
        self.answer(b"")

    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, body):
        text = f"{NAME} {self.command} {self.path} {len(body)}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
