"""What the answers of several routes have in common."""

from time import perf_counter_ns

from tuplegate.http.exchange import Exchange


def write_timings(exchange: Exchange, exec_us: int) -> bytes:
    total_us = (perf_counter_ns() - exchange.started_ns) // 1000
    if exchange.traced:
        note_engine_time(exchange, exec_us)
    return b'"timings":{"total_us":%d,"exec_us":%d}' % (total_us, exec_us)


def note_engine_time(exchange: Exchange, exec_us: int) -> None:
    """The engine is done with what the request asked of it, and took so long."""
    exchange.exec_us, exchange.engine_ended_ns = exec_us, perf_counter_ns()
