"""A server that somebody else runs: the supervisor has nothing to start, watch or stop."""

from dataclasses import dataclass

from tuplegate.engine.bundled.binaries import DumpTool


@dataclass(frozen=True, slots=True)
class ExternalServer:
    """Stands in for a bundled server, and never dies."""

    conninfo: str
    dump_tools: tuple[DumpTool, ...] = ()
    pid: int | None = None

    def poll(self) -> int | None:
        return None

    def restart(self) -> None:
        pass

    def bound_log(self) -> None:
        pass

    def keep_reserve(self) -> bool | None:
        return None
