"""Pricing knows what things cost. It speaks HTTP (prices), a TCP line protocol (taxes) and UDP (exchange rates)."""

import json
import os
import signal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, StreamRequestHandler, ThreadingTCPServer, UDPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import shop

ME = shop.identity("pricing")

# Prices are in cents of BASE_CURRENCY, rates say how much one unit of it is worth.
BASE_CURRENCY = "EUR"
PRICES = {"book": 1250, "lamp": 3900, "mug": 800, "pen": 150}
RATES = {"EUR": 1.0, "USD": 1.08, "GBP": 0.85, "CHF": 0.95}


class Refused(Exception):
    """The question has no answer. The text says why."""


def price(item, quantity):
    if item not in PRICES:
        raise Refused(f"no price for {item!r}")
    discount = shop.config()["discount_percent"]
    return {
        "item": item,
        "quantity": quantity,
        "unit_cents": PRICES[item],
        "discount_percent": discount,
        "total_cents": PRICES[item] * quantity * (100 - discount) // 100,
        "currency": BASE_CURRENCY,
    }


def answer_line(line):
    """Answers one line, or one datagram: `TAX cents` or `RATE from to`."""
    try:
        match line.split():
            case ["TAX", cents]:
                percent = int(os.environ.get("TAX_PERCENT", "20"))
                return {"tax_cents": int(cents) * percent // 100, "tax_percent": percent}
            case ["RATE", source, target]:
                return {"from": source, "to": target, "rate": RATES[target] / RATES[source]}
            case _:
                raise Refused("ask `TAX cents` or `RATE from to`")
    except KeyError as error:
        raise Refused(f"no rate for {error}") from error
    except ValueError as error:
        raise Refused(str(error)) from error


def answer_bytes(question):
    try:
        answer = answer_line(question.decode(errors="replace"))
    except Refused as refused:
        answer = {"error": str(refused)}
    return json.dumps(answer | {"identity": ME}).encode() + b"\n"


class LineHandler(StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self):
        for line in self.rfile:
            self.wfile.write(answer_bytes(line))


class DatagramHandler(BaseRequestHandler):
    def handle(self):
        question, sock = self.request
        sock.sendto(answer_bytes(question), self.client_address)


class HttpHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are two writes; without this the second waits for the acknowledgement of the first.
    disable_nagle_algorithm = True

    def do_GET(self):
        url = urlsplit(self.path)
        match url.path:
            case "/health":
                self.answer(200, {"healthy": True})
            case "/whoami":
                self.answer(200, {})
            case "/config":
                stage = os.environ.get("SHOP_STAGE", "local")
                self.answer(200, shop.config() | {"stage": stage, "api_key": shop.api_key()})
            case "/price":
                self.answer_price(parse_qs(url.query))
            case _:
                self.answer(404, {"error": f"nothing at {url.path}"})

    def answer_price(self, query):
        try:
            item, quantity = query["item"][0], int(query.get("quantity", ["1"])[0])
        except (KeyError, ValueError):
            return self.answer(400, {"error": "ask /price?item=NAME&quantity=NUMBER"})
        try:
            self.answer(200, price(item, quantity))
        except Refused as refused:
            self.answer(404, {"error": str(refused)})

    def answer(self, status, body):
        content = json.dumps(body | {"identity": ME}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header(shop.IDENTITY_HEADER, json.dumps(ME))
        self.end_headers()
        self.wfile.write(content)

    def log_request(self, code="-", size="-"):
        """A line for each request is more than a sample needs; errors are still logged."""


class HttpServer(ThreadingHTTPServer):
    request_queue_size = 128


class LineServer(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128


def start(http_port, tcp_port, udp_port):
    """Listens and returns the servers; each runs in a thread that ends with the process."""
    servers = [
        HttpServer(("", http_port), HttpHandler),
        LineServer(("", tcp_port), LineHandler),
        UDPServer(("", udp_port), DatagramHandler),
    ]
    for server in servers:
        Thread(target=server.serve_forever, daemon=True).start()
    return servers


def main():
    # Blocked before any thread starts, so that every thread leaves the signals to sigwait.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    ports = [int(os.environ.get(name, default))
             for name, default in [("HTTP_PORT", "8080"), ("TCP_PORT", "7000"), ("UDP_PORT", "7001")]]
    start(*ports)
    print("pricing is up: HTTP {}, TCP {}, UDP {}".format(*ports), flush=True)
    signal.sigwait(ends)


if __name__ == "__main__":
    main()
