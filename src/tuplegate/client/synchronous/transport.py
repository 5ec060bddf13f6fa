# Made by tools/sync_client.py of asynchronous/transport.py. Do not edit.
"""Sends requests over HTTP: it reuses connections, and repeats a call where that is safe.

A lost answer is the hard case. A request that changes nothing, or that has an Idempotency-Key or a sequence within its
transaction, is sent again. For any other, the caller is told that the outcome is unknown.
"""

import random
import ssl
import time
from time import monotonic

import httpx

from tuplegate.client.answers import Answer, decode_answer
from tuplegate.client.errors import OutcomeUnknown, SqlError, TuplegateError
from tuplegate.client.failures import explain_doubt, explain_not_sent, find_cause, find_origin
from tuplegate.client.positions import Positions
from tuplegate.client.progress import is_settled
from tuplegate.client.requests import Call
from tuplegate.client.retries import AnswerLost, Course, Repeat, nothing_was_applied

_CONNECT_TIMEOUT_S = 10.0
_ANSWER_GRACE_S = 5.0
"""The service ends a statement at its limit; after this much longer the answer counts as lost."""
_SILENCE_S = 60.0
"""A live stream sends something every 15 seconds."""
# The service keeps idle connections longer, so a request never meets one that is being closed.
_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=30)


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
                        raise explain_doubt(call, error) from error
                    if in_doubt and call.repeat is Repeat.SEQUENCED and not lost:
                        message = f"the answer was lost and could not be asked for again: {error.message}"
                        raise AnswerLost(message, code=error.code, status=error.status) from error
                    raise
            time.sleep(pause_s)

    def _send_once(self, call: Call, course: Course) -> Answer:
        response = self._send(call, max(course.deadline - monotonic(), 0) + _ANSWER_GRACE_S)
        try:
            return decode_answer(response, _read_content(response, course.deadline + _ANSWER_GRACE_S), call.exact)
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
            raise explain_not_sent(call, exc) from exc
        except httpx.TransportError as exc:
            raise AnswerLost(
                f"the connection to {find_origin(call)} was lost before the answer: {find_cause(exc)}"
            ) from exc

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
                    decode_answer(response, _read_content(response, course.deadline + _ANSWER_GRACE_S))
                finally:
                    response.close()
                raise TuplegateError(f"{find_origin(call)} did not answer with a stream: is it a Tuplegate service?")
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
        raise AnswerLost(f"the connection was lost within the answer: {find_cause(exc)}") from exc
    return b"".join(parts)
