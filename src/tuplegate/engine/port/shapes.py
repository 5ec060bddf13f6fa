"""How rows are asked for."""

from typing import Literal

import msgspec

from tuplegate.protocol.messages import BigNumbers, RowMode

ValueStyle = Literal["service", "text", "mixed"]
"""How values are written: as the service does; all of them as the engine's own text; or as JSON where JSON has the
type (small whole numbers, floats, booleans, JSON itself, arrays) and as the engine's text where it has not."""


class Shape(msgspec.Struct, frozen=True, gc=False):
    """The form in which the client wants rows.

    In another style than the service's own, each column of a result is an object with its name and what the engine says
    of it in numbers: `dataTypeID`, `tableID`, `columnID`, `dataTypeSize`, `dataTypeModifier`. Types have no names then.
    """

    row_mode: RowMode = "objects"
    big_numbers: BigNumbers = "number"
    style: ValueStyle = "service"
