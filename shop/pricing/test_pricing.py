import json
import os
import socket
import tempfile
import unittest
from pathlib import Path
from unittest.mock import patch
from urllib.error import HTTPError
from urllib.request import urlopen

import pricing
import shop


class Identity(unittest.TestCase):
    def test_the_replica_is_what_follows_the_last_dash(self):
        for pod, replica in [("pricing-0", "0"), ("checkout-7d9f-x2x4z", "x2x4z"), ("laptop", "laptop")]:
            with patch.dict(os.environ, POD_NAME=pod, CLUSTER_NAME="east"):
                self.assertEqual(
                    shop.identity("pricing"),
                    {"service": "pricing", "cluster": "east", "pod": pod, "replica": replica},
                )


class Servers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        servers = pricing.start(0, 0, 0)
        cls.http_port, cls.tcp_port, cls.udp_port = [server.server_address[1] for server in servers]
        for server in servers:
            cls.addClassCleanup(server.server_close)
            cls.addClassCleanup(server.shutdown)

    def get(self, path):
        with urlopen(f"http://127.0.0.1:{self.http_port}{path}") as response:
            body = json.load(response)
            self.assertEqual(json.loads(response.headers["shop-identity"]), body["identity"])
            return body

    def test_http_price_follows_the_config_file(self):
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder, "shop.json")
            with patch.dict(os.environ, SHOP_CONFIG=str(config)):
                self.assertEqual(self.get("/price?item=book&quantity=2")["total_cents"], 2500)
                config.write_text('{"discount_percent": 10}')
                self.assertEqual(self.get("/price?item=book&quantity=2")["total_cents"], 2250)

    def test_http_refuses_what_it_does_not_know(self):
        for path, status in [("/price?item=unicorn", 404), ("/price", 400), ("/nothing", 404)]:
            with self.assertRaises(HTTPError) as caught:
                self.get(path)
            self.assertEqual(caught.exception.code, status)
            caught.exception.close()

    def test_config_tells_the_fingerprint_and_not_the_secret(self):
        with tempfile.TemporaryDirectory() as folder:
            secret = Path(folder, "api-key")
            with patch.dict(os.environ, SHOP_API_KEY_FILE=str(secret)):
                self.assertEqual(self.get("/config")["api_key"], {"present": False, "fingerprint": None})
                secret.write_text("abc")
                self.assertEqual(
                    self.get("/config")["api_key"], {"present": True, "fingerprint": "sha256:ba7816bf8f01"}
                )

    def test_tcp_answers_line_after_line(self):
        with socket.create_connection(("127.0.0.1", self.tcp_port)) as connection:
            lines = connection.makefile("rw", buffering=1)
            for question, key, value in [("TAX 1000", "tax_cents", 200), ("TAX x", "error", None), ("TAX 10", "tax_cents", 2)]:
                lines.write(question + "\n")
                answer = json.loads(lines.readline())
                self.assertEqual(answer["identity"], pricing.ME)
                self.assertIn(key, answer)
                if value is not None:
                    self.assertEqual(answer[key], value)
            lines.close()

    def test_udp_answers_each_datagram(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(5)
            for question, key in [(b"RATE EUR USD", "rate"), (b"RATE EUR XXX", "error"), (b"", "error")]:
                client.sendto(question, ("127.0.0.1", self.udp_port))
                answer = json.loads(client.recv(2048))
                self.assertEqual(answer["identity"], pricing.ME)
                self.assertIn(key, answer)


if __name__ == "__main__":
    unittest.main()
