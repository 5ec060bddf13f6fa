"""No tenant blocks the service with a text."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tenants import Tenant, make_tenant_fixture, server_of, undisturbed

BOMB = "/**/" * 2_000_000 + "select 1"
LONG_RUN = "/*" * 1000 + "+" * 5_000_000 + " */" * 1000 + "select 1"

one = make_tenant_fixture("service", "texts-one")
two = make_tenant_fixture("service", "texts-two", "create table kept (a int)")


@pytest.mark.parametrize("text", [BOMB, LONG_RUN], ids=["comments", "comments and a long operator"])
def test_a_text_of_comments_is_refused_on_every_route(one: Tenant, two: Tenant, text: str) -> None:
    """Before the engine sees it: its scanner would run for hours, and nothing would end that."""
    client = one.write.client
    with undisturbed(two):
        answers = [
            client.post("/v1/query", json={"sql": text}),
            client.post("/query", content=text, headers={"Content-Type": "text/plain"}),
            client.post("/v1/transaction", json={"statements": ["select 1", text]}),
            client.post("/v1/query", json={"sql": "/*+ STREAM */" + text}),
            client.post("/v1/query", json={"sql": text}, headers={"Accept": "application/x-ndjson"}),
            client.post("/v1/query", json={"sql": text}, headers={"Idempotency-Key": "a-key-of-comments"}),
        ]
    for answer in answers:
        assert answer.status_code == 400, answer.text[:200]
        assert answer.json()["error"]["code"] == "too_many_comments"
        assert "parameters" in answer.json()["error"]["hint"]
    assert answers[2].json()["error"]["statement"] == 1
    with server_of(one) as engine:
        active = "select query from pg_stat_activity where backend_type = 'client backend' and state = 'active'"
        assert not any("/**/" * 9 in str(query) for (query,) in engine.execute(active).fetchall())


def test_others_are_answered_while_great_texts_are_read(one: Tenant, two: Tenant) -> None:
    """Texts that took the service long to look at, several at once; the bystander gets an answer before they all do."""
    texts = ["--\n" * 2_000_000 + "select 1", "select " + "_" * 9_000_000, BOMB, "é" * 4_000_000]
    bodies = [json.dumps({"sql": text}, ensure_ascii=False).encode() for text in texts]
    headers = {"Content-Type": "application/json"}
    with one.service.client(one.admin) as client, undisturbed(two), ThreadPoolExecutor(8) as threads:
        sent = [threads.submit(client.post, "/v1/query", content=body, headers=headers) for body in bodies * 2]
        two.read("select 1")
        assert not all(each.done() for each in sent)
        assert {each.result().status_code for each in sent} == {200, 400}
