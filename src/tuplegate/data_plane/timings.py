"""The times that answers of several routes report."""

from time import perf_counter_ns

from tuplegate.http.exchange import Exchange


def write_timings(exchange: Exchange, exec_us: int) -> bytes:
    """Return the field `timings`, and note the time of the engine for traces."""
    total_us = (perf_counter_ns() - exchange.started_ns) // 1000
    if exchange.traced:
        note_engine_time(exchange, exec_us)
    return b'"timings":{"total_us":%d,"exec_us":%d}' % (total_us, exec_us)


def note_engine_time(exchange: Exchange, exec_us: int) -> None:
    """Note that the engine has just finished, after this time."""
    exchange.exec_us, exchange.engine_ended_ns = exec_us, perf_counter_ns()
