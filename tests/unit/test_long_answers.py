"""Answers that go on for long end with their token, or for another reason, and their handlers learn which."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from tuplegate.admission.long_answers import LongAnswers
from tuplegate.eager import EagerRun
from tuplegate.http.exchange import Exchange
from tuplegate.protocol.errors import ServiceError


class FakeExchange:
    """As much of an exchange as is looked at."""

    def __init__(self, token: str) -> None:
        self.headers = {b"authorization": f"Bearer {token}".encode()}
        self.client_gone = False
        self.run: EagerRun | None = None


class Answer:
    """One that is written until it is ended; `told` is how that was."""

    def __init__(self, answers: LongAnswers, token: str) -> None:
        self.fake = FakeExchange(token)
        self.exchange = cast(Exchange, self.fake)
        self.told = ""
        self.is_done = asyncio.Event()
        self.fake.run = EagerRun(self._write(answers), lambda _cancelled: self.is_done.set())
        self.fake.run.resume()

    async def _write(self, answers: LongAnswers) -> None:
        try:
            with answers.running(self.exchange):
                await asyncio.Event().wait()
        except ServiceError as error:
            self.told = error.body.code
        except asyncio.CancelledError:
            self.told = "cancelled"
            raise


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 20))


def test_a_revoked_token_ends_its_own_answers_alone() -> None:
    async def test() -> None:
        answers = LongAnswers()
        first, second, other = (Answer(answers, token) for token in ("svc_k_a", "svc_k_a", "svc_k_b"))
        assert answers.tokens == {b"svc_k_a", b"svc_k_b"}
        answers.revoke(b"svc_k_a")
        await first.is_done.wait()
        await second.is_done.wait()
        assert (first.told, second.told, other.told) == ("unauthenticated", "unauthenticated", "")
        assert answers.tokens == {b"svc_k_b"}
        answers.end(other.exchange, ServiceError("transaction_aborted", "over"))
        answers.end(other.exchange, ServiceError("transaction_expired", "too late"))
        await other.is_done.wait()
        assert (other.told, answers.tokens) == ("transaction_aborted", set())
        answers.end(other.exchange, ServiceError("transaction_aborted", "over"))  # nothing is left to end

    run(test())


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_client_that_leaves_is_told_nothing(is_ended: bool) -> None:
    async def test() -> None:
        answers = LongAnswers()
        answer = Answer(answers, "svc_k_a")
        answer.fake.client_gone = True
        if is_ended:
            answers.revoke(b"svc_k_a")
        else:
            assert answer.fake.run is not None
            answer.fake.run.cancel()
        await answer.is_done.wait()
        assert (answer.told, answers.tokens) == ("cancelled", set())

    run(test())
