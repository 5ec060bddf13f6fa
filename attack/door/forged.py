"""Requests with tokens that are made up."""

import os

from attack.door.raw import post
from tuplegate.access.tokens import RANDOM_BYTES, TokenKind, make_token


def forge_request() -> bytes:
    """A request with a token that is well-formed, so that it has to be looked up."""
    return post("/v1/query", make_token(TokenKind.KEY, os.urandom(RANDOM_BYTES)).text, b'{"sql":"select 1"}')
