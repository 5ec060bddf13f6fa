"""Errors as answers: the only place that turns an exception into a status and a body."""

from collections.abc import Mapping

import msgspec
import structlog

from tuplegate.http.exchange import Exchange
from tuplegate.protocol.errors import ErrorBody, ServiceError

_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger()

RETRY_AFTER_S = 1


def error_body(error: ErrorBody, request_id: str, more: Mapping[str, object] | None = None) -> bytes:
    return _encode({"success": False, **(more or {}), "error": error, "request_id": request_id})


def respond_error(exchange: Exchange, error: ServiceError, more: Mapping[str, object] | None = None) -> None:
    """Respond with the error; `more` are fields beside it."""
    exchange.error_code = error.body.code
    write = exchange.error_writer
    if write is None:
        status, body = error.status, error_body(error.body, exchange.request_id, more)
    else:
        status, body = write(error, exchange.request_id)
    headers = list(error.headers)
    if status == 401:
        headers.append(("www-authenticate", "Bearer"))
    if status == 503:
        headers.append(("retry-after", str(RETRY_AFTER_S)))
    exchange.respond(status, body, headers)


def end_with_error(exchange: Exchange, error: ServiceError) -> None:
    """Respond with the error, or cut off the answer that has begun already."""
    if not exchange.answered:
        respond_error(exchange, error)
    else:
        exchange.keep_alive = False


def report_unexpected(exchange: Exchange, exc: BaseException) -> ServiceError:
    """Log a fault of the service, without the request's text, and return an error that tells the client only the
    request id."""
    _log.error("unexpected failure", request_id=exchange.request_id, route=exchange.path, exc_info=exc)
    return ServiceError("internal", "the service failed; its log has the cause under this request id")
