"""A page of metrics, read by Prometheus's own parser."""

from collections.abc import Iterable

import httpx
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Page:
    def __init__(self, text: str) -> None:
        self.families: dict[str, Metric] = {family.name: family for family in text_string_to_metric_families(text)}
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __len__(self) -> int:
        return len(self._samples)

    def value(self, name: str, **labels: str) -> float:
        """Of one series; 0 where it is not there."""
        return self._samples.get((f"tuplegate_{name}", frozenset(labels.items())), 0)

    def total(self, name: str, **labels: str) -> float:
        """Of all series that have these labels, and perhaps others."""
        wanted = labels.items()
        return sum(v for (n, given), v in self._samples.items() if n == f"tuplegate_{name}" and wanted <= given)

    def series(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for found, labels in self._samples if found == f"tuplegate_{name}"]

    @property
    def counters(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Everything that may never go down."""
        return {key: value for key, value in self._samples.items() if _only_grows(key[0])}


def _only_grows(name: str) -> bool:
    return name.endswith(("_total", "_bucket", "_count", "_sum"))


def scrape(service: Service, client: httpx.Client | None = None) -> Page:
    """From the control plane, with the first key; on a connection of its own, if none is given."""
    if client is None:
        with httpx.Client(verify=False) as opened:
            return scrape(service, opened)
    answer = client.get(
        f"{service.control_url}/metrics", headers={"Authorization": f"Bearer {service.key}"}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == CONTENT_TYPE
    return Page(answer.text)


def fallen(before: Page, after: Page) -> Iterable[object]:
    """Counters that went down, or that are gone."""
    return [
        (key, was, after.counters.get(key)) for key, was in before.counters.items() if after.counters.get(key, -1) < was
    ]
