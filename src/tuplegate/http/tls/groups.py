"""Limits the groups in which clients may ask the server to agree on a key: only curves.

OpenSSL also offers finite fields of up to 8192 bits. A client asks for one with bytes that it makes up, and the server
computes for a good part of a second: a few clients without a key could stall everybody.

Before Python 3.15 the `ssl` module can name only one curve, not a list. One curve would cost most clients a round trip,
because they guess another, so the list is given to OpenSSL directly. Where that is impossible, the server offers the
one curve that all clients have.
"""

import _ssl
import ctypes
import ssl
import sys
import sysconfig

GROUPS = "X25519:P-256:P-384"
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: older ciphers would bring back the finite fields."""

_SET_GROUPS_LIST = 92
_FIRST, _LAST = (3, 11), (3, 14)
"""Versions of Python whose context object begins with a pointer to OpenSSL's."""


def offer_curves(context: ssl.SSLContext) -> None:
    context.set_ciphers(CIPHERS)
    if hasattr(context, "set_groups"):
        context.set_groups(GROUPS)
    elif not _set_list(context):
        context.set_ecdh_curve("prime256v1")


def _set_list(context: ssl.SSLContext) -> bool:
    as_known = sys.implementation.name == "cpython" and _FIRST <= sys.version_info[:2] <= _LAST
    if not as_known or sysconfig.get_config_var("Py_DEBUG") or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    try:
        library = ctypes.CDLL(_ssl.__file__)
        options, control = library.SSL_CTX_get_options, library.SSL_CTX_ctrl
    except (AttributeError, OSError):  # OpenSSL is built into the interpreter and not exported
        return False
    options.argtypes, options.restype = [ctypes.c_void_p], ctypes.c_uint64
    control.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_char_p]
    control.restype = ctypes.c_long
    inner = ctypes.c_void_p.from_address(id(context) + object.__basicsize__)
    return bool(options(inner) == context.options and control(inner, _SET_GROUPS_LIST, 0, GROUPS.encode()) == 1)
