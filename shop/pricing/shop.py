"""What every service of the shop has: who it is, its configuration and its secret."""

import hashlib
import json
import os
import socket
from pathlib import Path

# Carries the identity as JSON in HTTP answers.
IDENTITY_HEADER = "shop-identity"

CONFIG_DEFAULTS = {"greeting": "Welcome", "currency": "EUR", "discount_percent": 0, "low_stock": 10}


def identity(service):
    pod = os.environ.get("POD_NAME") or socket.gethostname()
    return {
        "service": service,
        "cluster": os.environ.get("CLUSTER_NAME") or "none",
        "pod": pod,
        # A StatefulSet's ordinal or a ReplicaSet's suffix.
        "replica": pod.rpartition("-")[2],
    }


def config():
    """Reads the file anew each time: it is small, and it changes under a running pod."""
    path = os.environ.get("SHOP_CONFIG", "/etc/shop/shop.json")
    try:
        return CONFIG_DEFAULTS | json.loads(Path(path).read_text())
    except (OSError, ValueError):
        return CONFIG_DEFAULTS


def api_key():
    """Whether the secret is there, and which one it is, without telling the secret."""
    path = os.environ.get("SHOP_API_KEY_FILE", "/var/run/secrets/shop/api-key")
    try:
        secret = Path(path).read_bytes()
    except OSError:
        return {"present": False, "fingerprint": None}
    return {"present": True, "fingerprint": "sha256:" + hashlib.sha256(secret).hexdigest()[:12]}
