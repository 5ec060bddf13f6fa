"""Explains failures of a call that the service itself has not reported: no connection, a lost answer, an answer of
another program. Pure."""

from urllib.parse import urlsplit

import httpx

from tuplegate.client.errors import OutcomeUnknown, TuplegateError
from tuplegate.client.requests import Call
from tuplegate.client.retries import AnswerLost, NotSent


def explain_foreign(response: httpx.Response) -> TuplegateError:
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


def explain_doubt(call: Call, error: TuplegateError) -> OutcomeUnknown:
    unknown = OutcomeUnknown(
        f"the answer was lost and could not be asked for again: {error.message}",
        code="outcome_unknown",
        request_id=error.request_id,
        hint="The same call with this idempotency_key runs at most once.",
    )
    unknown.idempotency_key = call.headers["Idempotency-Key"]
    return unknown


def explain_lost_commit(id: str | None, lost: TuplegateError) -> OutcomeUnknown:
    unknown = OutcomeUnknown(
        f"{lost.message}; {id} may have been committed",
        code="outcome_unknown",
        hint="client.transaction_state(error.transaction_id) tells the outcome.",
    )
    unknown.transaction_id = id
    return unknown


def explain_not_sent(call: Call, exc: httpx.TransportError) -> NotSent:
    untrusted = "CERTIFICATE_VERIFY_FAILED" in str(exc)
    trust = "Give the certificate of its authority as ca_file; to a command with --ca-file or TUPLEGATE_CA_FILE."
    hint = trust if untrusted else "Is the service running?"
    # A certificate does not become trusted by asking again.
    return NotSent(f"{find_origin(call)} cannot be reached: {find_cause(exc)}", hint=hint, retryable=not untrusted)


def find_origin(call: Call) -> str:
    parts = urlsplit(call.url)
    return f"{parts.scheme}://{parts.netloc}"


def find_cause(exc: Exception) -> str:
    return str(exc) or type(exc).__name__
