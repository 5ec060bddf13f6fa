# Made by tools/sync_client.py of asynchronous/transport.py. Do not edit.
"""Sends requests over HTTP: it reuses connections, and repeats a call where that is safe.

A lost answer is the hard case. A request that changes nothing, or that has an Idempotency-Key or a sequence within its
transaction, is sent again. For any other, the caller is told that the outcome is unknown.
"""

import json
import random
import ssl
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import monotonic
from urllib.parse import urlsplit

import httpx

from tuplegate.client.answers import Answer
from tuplegate.client.collecting import LARGE_BYTES, pause_collector
from tuplegate.client.errors import OutcomeUnknown, SqlError, TuplegateError, make_error
from tuplegate.client.positions import Positions
from tuplegate.client.progress import is_settled
from tuplegate.client.retries import AnswerLost, Course, NotSent, Repeat, nothing_was_applied
from tuplegate.client.values import Number

_CONNECT_TIMEOUT_S = 10.0
_ANSWER_GRACE_S = 5.0
"""The service ends a statement at its limit; after this much longer the answer counts as lost."""
_SILENCE_S = 60.0
"""A live stream sends something every 15 seconds."""
# The service keeps idle connections longer, so a request never meets one that is being closed.
_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=30)


@dataclass(frozen=True)
class Call:
    """One request. A repetition sends the same bytes."""

    method: str
    url: str
    body: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeat: Repeat = Repeat.NEVER
    exact: bool = False
    """Keep the digits of numbers in the answer, as `Number`."""


class Transport:
    """Sends calls with a token. It opens connections when they are needed."""

    def __init__(self, token: str, *, secure: bool, ca_file: str | None, retries: int) -> None:
        # Reading the certificate store takes time, and plain HTTP does not need it.
        verify = ssl.create_default_context(cafile=ca_file) if secure else False
        self._http = httpx.Client(verify=verify, limits=_LIMITS)
        self._retries = retries
        self.token = token
        self.positions = Positions()

    def close(self) -> None:
        self._http.close()

    def start_course(self, timeout_s: float) -> Course:
        return Course(monotonic() + timeout_s, self._retries)

    # -- whole answers ------------------------------------------------------------------------------------------

    def call(self, call: Call, course: Course) -> Answer:
        """Send the call and return a successful answer; raise the error of any other."""
        in_doubt = False
        while True:
            try:
                return self._send_once(call, course)
            except SqlError:
                # The engine's error is final. On a repetition, a success of the first request would have been replayed.
                raise
            except TuplegateError as error:
                lost = isinstance(error, AnswerLost | OutcomeUnknown)
                in_doubt = in_doubt or lost
                again = nothing_was_applied(error) or (lost and call.repeat is not Repeat.NEVER)
                if call.repeat is Repeat.SEQUENCED and is_settled(error) and not lost:
                    raise
                pause_s = course.pause_s(error, monotonic(), random.random()) if again else None  # noqa: S311 - jitter
                if pause_s is None:
                    if in_doubt and call.repeat is Repeat.KEYED:
                        raise _explain_doubt(call, error) from error
                    if in_doubt and call.repeat is Repeat.SEQUENCED and not lost:
                        message = f"the answer was lost and could not be asked for again: {error.message}"
                        raise AnswerLost(message, code=error.code, status=error.status) from error
                    raise
            time.sleep(pause_s)

    def _send_once(self, call: Call, course: Course) -> Answer:
        response = self._send(call, max(course.deadline - monotonic(), 0) + _ANSWER_GRACE_S)
        try:
            return _decode(response, _read_content(response, course.deadline + _ANSWER_GRACE_S), call.exact)
        finally:
            response.close()

    def _send(self, call: Call, read_timeout_s: float) -> httpx.Response:
        """Send the call and return the head of the answer; the body is still to be read."""
        headers = {"Authorization": f"Bearer {self.token}", **call.headers}
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        timeout = httpx.Timeout(read_timeout_s, connect=min(_CONNECT_TIMEOUT_S, read_timeout_s))
        request = self._http.build_request(call.method, call.url, content=call.body, headers=headers, timeout=timeout)
        settled = self.positions.count_settled(call.headers)
        try:
            response = self._http.send(request, stream=True)
            self.positions.note_answer(response.headers, settled)
            return response
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as exc:
            raise _explain_not_sent(call, exc) from exc
        except httpx.TransportError as exc:
            raise AnswerLost(f"the connection to {_origin(call)} was lost before the answer: {_cause(exc)}") from exc

    # -- streams ------------------------------------------------------------------------------------------------

    def open(self, call: Call, course: Course, kind: str = "application/x-ndjson") -> httpx.Response:
        """Send the call and return the head of a stream. It is repeated only if nothing can have run, or it changes
        nothing."""
        while True:
            try:
                response = self._send(call, _SILENCE_S)
                if response.headers.get("content-type", "").startswith(kind):
                    return response
                try:
                    _decode(response, _read_content(response, course.deadline + _ANSWER_GRACE_S))
                finally:
                    response.close()
                raise TuplegateError(f"{_origin(call)} did not answer with a stream: is it a Tuplegate service?")
            except TuplegateError as error:
                lost = isinstance(error, AnswerLost)
                if lost and call.repeat is Repeat.NEVER:
                    raise OutcomeUnknown(error.message) from error
                again = lost or nothing_was_applied(error)
                pause_s = course.pause_s(error, monotonic(), random.random()) if again else None  # noqa: S311 - jitter
                if pause_s is None:
                    raise
            time.sleep(pause_s)


def _read_content(response: httpx.Response, deadline: float) -> bytes:
    """Read the body. The deadline is for all of it, however slowly it arrives."""
    parts = []
    try:
        for part in response.iter_bytes():
            parts.append(part)
            if monotonic() > deadline:
                raise AnswerLost("the answer did not end in time")
    except httpx.TransportError as exc:
        raise AnswerLost(f"the connection was lost within the answer: {_cause(exc)}") from exc
    return b"".join(parts)


def _decode(response: httpx.Response, content: bytes, exact: bool = False) -> Answer:
    """Decode the answer, and raise the error that it holds."""
    status = response.status_code
    try:
        with pause_collector() if len(content) > LARGE_BYTES else nullcontext():
            body = json.loads(content, parse_float=Number if exact else None)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise _explain_foreign(response)
    if isinstance(body.get("error"), dict):
        request_id = body.get("request_id") or response.headers.get("x-request-id")
        error = make_error(status, body["error"], request_id, _retry_after_s(response))
        error.answer = body
        raise error
    if status >= 300 and "checks" not in body:  # health answers 503 with its checks
        raise _explain_foreign(response)
    return Answer(status, body, response.headers)


def _explain_foreign(response: httpx.Response) -> TuplegateError:
    """Return the error for a response that is not from the service, but from a proxy or something else."""
    said = f"{response.url.host} answered with status {response.status_code} and nothing that it says"
    if response.status_code in (502, 503, 504):
        # A proxy lost the service, perhaps before and perhaps after the request arrived.
        return AnswerLost(said)
    location = response.headers.get("location")
    hint = "Is this the address of a Tuplegate service?"
    if location:
        hint = f"It redirects to {location}, where the key is not sent unasked. Give the address that answers itself."
    return TuplegateError(said, status=response.status_code, hint=hint)


def _retry_after_s(response: httpx.Response) -> float | None:
    try:
        return max(float(response.headers["retry-after"]), 0.0)
    except (KeyError, ValueError):
        return None


def _explain_doubt(call: Call, error: TuplegateError) -> OutcomeUnknown:
    unknown = OutcomeUnknown(
        f"the answer was lost and could not be asked for again: {error.message}",
        code="outcome_unknown",
        request_id=error.request_id,
        hint="The same call with this idempotency_key runs at most once.",
    )
    unknown.idempotency_key = call.headers["Idempotency-Key"]
    return unknown


def _explain_not_sent(call: Call, exc: httpx.TransportError) -> NotSent:
    untrusted = "CERTIFICATE_VERIFY_FAILED" in str(exc)
    trust = "Give the certificate of its authority as ca_file; to a command with --ca-file or TUPLEGATE_CA_FILE."
    hint = trust if untrusted else "Is the service running?"
    # A certificate does not become trusted by asking again.
    return NotSent(f"{_origin(call)} cannot be reached: {_cause(exc)}", hint=hint, retryable=not untrusted)


def _origin(call: Call) -> str:
    parts = urlsplit(call.url)
    return f"{parts.scheme}://{parts.netloc}"


def _cause(exc: Exception) -> str:
    return str(exc) or type(exc).__name__
