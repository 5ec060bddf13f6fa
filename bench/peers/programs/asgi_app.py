# mypy: ignore-errors
"""The routes that floods and their bystander ask for, as a bare ASGI application. Runs in the peer's own environment.

It does as little as possible, so that what is measured is the server. A request with the key gets a row once its body
has come; one without a key is refused before that.
"""

import json
import os

KEY = b"Bearer " + os.environb[b"PEER_KEY"]
ROW = json.dumps({"success": True, "rows": [["row 7"]]}).encode()
DESCRIPTION = json.dumps({"description": "x" * 186_000}).encode()
OPEN = {"/": b'{"service":"peer"}', "/health": b'{"status":"ok"}', "/openapi.json": DESCRIPTION}
UNAUTHENTICATED, NOT_FOUND = b'{"error":"unauthenticated"}', b'{"error":"not_found"}'


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    path = scope["path"]
    if path in OPEN:
        status, body = 200, OPEN[path]
    elif path not in ("/v1/query", "/v1/session"):
        status, body = 404, NOT_FOUND
    elif dict(scope["headers"]).get(b"authorization") != KEY:
        status, body = 401, UNAUTHENTICATED
    else:
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
        status, body = 200, ROW
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
