"""A server of Python's standard library whose responses contain its name. Arguments: its name and the HTTP version."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME, VERSION = sys.argv[1:]


class Handler(BaseHTTPRequestHandler):
    protocol_version = VERSION

    def do_GET(self):
        self.respond(b"")

    def do_HEAD(self):
        self.respond(b"")

    def do_POST(self):
        self.respond(self.rfile.read(int(self.headers["Content-Length"])))

    def respond(self, body):
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
