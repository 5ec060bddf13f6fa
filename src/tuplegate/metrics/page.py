"""Writes the metrics in Prometheus's text format, version 0.0.4."""

from collections.abc import Iterator, Mapping

from tuplegate.metrics.cells import BOUNDS_S, BUCKETS, STATUSES, SUM, Cell
from tuplegate.metrics.sums import OTHER, Sums
from tuplegate.metrics.table import METRICS, Metric, MetricKind

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

DATABASES_SHOWN = 50
"""Each metric of databases shows this many, the largest, and adds up the rest as `other`. Each metric has its own
order, so `other` never decreases: a database that moves up into the list was smaller than the one it replaces."""

Samples = dict[str, list[tuple[tuple[str, ...], float]]]
"""Label values and value of each sample, by metric."""

_BACKSLASH, _NEWLINE, _QUOTE = ("\\", "\\\\"), ("\n", "\\n"), ('"', '\\"')


def write_page(sums: Sums, gauges: Mapping[str, float], info: tuple[str, ...]) -> bytes:
    """Return the page. Keys of `gauges` are a metric and its label values, separated by blanks; `info` identifies the
    running service."""
    samples = _collect_samples(sums, gauges)
    samples["info"] = [(info, 1)]
    lines: list[str] = []
    for metric in METRICS.values():
        cells = _find_histograms(metric.name, sums)
        found = samples.pop(metric.name, [])
        if not cells and not found and metric.labels:
            continue
        lines.append(f"# HELP {metric.full_name} {_escape(metric.help, _BACKSLASH, _NEWLINE)}")
        lines.append(f"# TYPE {metric.full_name} {metric.kind.value}")
        if metric.kind is MetricKind.HISTOGRAM:
            for values, cell in cells:
                lines += _write_histogram(metric, values, cell)
        else:
            lines += [_write_line(metric, "", values, value) for values, value in found or [((), 0)]]
    assert not samples, f"not in the table of metrics: {samples.keys()}"
    return ("\n".join(lines) + "\n").encode()


def _collect_samples(sums: Sums, gauges: Mapping[str, float]) -> Samples:
    samples: Samples = {}
    for key, cell in sums.requests.items():
        values = tuple(key.split(" "))
        counts = [((*values, status), cell[place]) for place, status in enumerate(STATUSES) if cell[place]]
        samples.setdefault("requests_total", []).extend(counts)
    samples["errors_total"] = [(tuple(key.split(" ")), count) for key, count in sums.errors.items()]
    samples["quota_refusals_total"] = [((), _count_errors(sums, "rate_limited"))]
    samples["storage_mismatches_total"] = [((), _count_errors(sums, "storage_mismatch"))]
    for key, number in [*sums.events.items(), *gauges.items()]:
        name, *labels = key.split(" ")
        samples.setdefault(name, []).append((tuple(labels), number))
    samples["worker_cpu_seconds_total"] = [((), sums.events.get("worker_cpu_us", 0) / 1e6)]
    samples.pop("worker_cpu_us", None)
    for place, name in enumerate(("requests", "rows", "bytes", "errors")):
        samples[f"database_{name}_total"] = [
            (tuple(key.split(" ")), number) for key, number in _pick_largest(sums.databases, place)
        ]
    return samples


def _count_errors(sums: Sums, code: str) -> int:
    return sum(count for key, count in sums.errors.items() if key.split(" ")[1] == code)


def _pick_largest(databases: dict[str, list[int]], place: int) -> Iterator[tuple[str, int]]:
    named = [(row[place], key) for key, row in databases.items() if row[place] and key != OTHER]
    named.sort(reverse=True)
    for value, key in named[:DATABASES_SHOWN]:
        yield key, value
    rest = sum(value for value, _ in named[DATABASES_SHOWN:])
    if OTHER in databases or len(named) > DATABASES_SHOWN:
        yield OTHER, rest + (databases[OTHER][place] if OTHER in databases else 0)


def _find_histograms(name: str, sums: Sums) -> list[tuple[tuple[str, ...], Cell]]:
    found = {"request_seconds": sums.requests, "engine_seconds": sums.engine}.get(name, {})
    return [(tuple(key.split(" ")), cell) for key, cell in found.items() if any(cell)]


def _write_histogram(metric: Metric, values: tuple[str, ...], cell: Cell) -> Iterator[str]:
    count = 0
    for place, bound in enumerate((*BOUNDS_S, None)):
        count += cell[BUCKETS + place]
        yield _write_line(metric, "_bucket", values, count, "+Inf" if bound is None else f"{bound:g}")
    yield _write_line(metric, "_sum", values, cell[SUM] / 1e9)
    yield _write_line(metric, "_count", values, count)


def _write_line(metric: Metric, ending: str, values: tuple[str, ...], value: float, le: str | None = None) -> str:
    labels = [f'{n}="{_escape(v, _BACKSLASH, _QUOTE, _NEWLINE)}"' for n, v in zip(metric.labels, values, strict=True)]
    if le is not None:
        labels.append(f'le="{le}"')
    return f"{metric.full_name}{ending}{'{' + ','.join(labels) + '}' if labels else ''} {_write_number(value)}"


def _write_number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)


def _escape(text: str, *pairs: tuple[str, str]) -> str:
    for plain, escaped in pairs:
        text = text.replace(plain, escaped)
    return text
