"""Creates a token for each case in cases.json with botocore, as `aws eks get-token` does: one token per line.

`python3 presign_with_botocore.py > tokens.txt` regenerates the golden file. It needs the package botocore.
"""

import base64
import datetime
import json
import pathlib
import sys

import botocore.auth
import botocore.session


def token(case):
    now = datetime.datetime.fromisoformat(case["now"])
    if hasattr(botocore.auth, "get_current_datetime"):
        botocore.auth.get_current_datetime = lambda remove_tzinfo=True: now
    else:

        class Clock(datetime.datetime):
            @classmethod
            def utcnow(cls):
                return now

        botocore.auth.datetime.datetime = Clock
    session = botocore.session.Session()
    session.set_credentials(case["accessKeyId"], case["secretAccessKey"], case.get("sessionToken"))
    session.set_config_variable("sts_regional_endpoints", "regional")
    client = session.create_client("sts", region_name=case["region"])

    def remember(params, context, **_):
        context["cluster"] = params.pop("Cluster")

    def sign_along(request, **_):
        request.headers["x-k8s-aws-id"] = request.context["cluster"]

    client.meta.events.register("provide-client-params.sts.GetCallerIdentity", remember)
    client.meta.events.register("before-sign.sts.GetCallerIdentity", sign_along)
    url = client.generate_presigned_url(
        "get_caller_identity", Params={"Cluster": case["cluster"]}, ExpiresIn=60, HttpMethod="GET"
    )
    return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


for case in json.loads((pathlib.Path(__file__).parent / "cases.json").read_text()):
    sys.stdout.write(token(case) + "\n")
