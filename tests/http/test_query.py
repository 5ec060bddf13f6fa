"""One statement over HTTP: what comes back."""

from tests.needs import needs
from tests.service import Service, Sql


@needs("int_literals")
def test_a_select_gives_columns_types_rows_and_timings(sql: Sql) -> None:
    """The shape of the contract's first example."""
    body = sql("select 1 as id, 'a' as name")
    assert body["columns"] == ["id", "name"]
    assert body["types"] == ["int4", "text"]
    assert body["rows"] == [{"id": 1, "name": "a"}]
    assert body["affected_rows"] == 0
    assert 0 < body["timings"]["exec_us"] <= body["timings"]["total_us"]


def test_the_first_start_prints_address_key_and_a_line_to_paste(service: Service) -> None:
    """One `name: value` a line, for a person and for a script."""
    assert [line.split(": ")[0] for line in service.output] == ["data", "alias", "control", "console", "key", "try"]
    assert service.key.startswith("svc_k_")
