"""A service in a network namespace of its own, and a client that sends requests to it all the time."""
import http.server
import subprocess
import threading
import time
import urllib.request

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


class Service(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = b"from the target\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def send_requests():
    count = 0
    while True:
        count += 1
        path = "/broken" if count % 5 == 0 else f"/cart/{count}"
        try:
            urllib.request.urlopen(f"http://127.0.0.1:8080{path}", timeout=5).read()
        except OSError:
            pass
        time.sleep(0.1)


threading.Thread(target=send_requests, daemon=True).start()
server = http.server.ThreadingHTTPServer(("", 8080), Service)
print("ready", flush=True)
server.serve_forever()
