"""The part of the cells that the supervisor makes for all workers before it forks them."""

from dataclasses import dataclass

from tuplegate.engine.bundled.binaries import DumpTool
from tuplegate.engine.cells.layout import CellsDirectory
from tuplegate.engine.cells.template import Template
from tuplegate.engine.postgres.safety.tally import CellTallies


@dataclass(frozen=True, slots=True)
class SharedCells:
    """The parts of the cells that all workers share."""

    directory: CellsDirectory
    template: Template
    tools: tuple[DumpTool, ...]
    tallies: CellTallies


def share_cells(
    directory: CellsDirectory, template: Template, tools: tuple[DumpTool, ...], workers: int
) -> SharedCells:
    return SharedCells(directory, template, tools, CellTallies(workers))
