"""What the answers of several routes have in common."""

from time import perf_counter_ns

from querygate.http.exchange import Exchange


def timings(exchange: Exchange, exec_us: int) -> bytes:
    total_us = (perf_counter_ns() - exchange.started_ns) // 1000
    return b'"timings":{"total_us":%d,"exec_us":%d}' % (total_us, exec_us)
