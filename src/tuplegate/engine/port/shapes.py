"""The forms in which rows can be requested."""

from typing import Literal

import msgspec

from tuplegate.protocol.messages import BigNumbers, RowMode

ValueStyle = Literal["service", "text", "mixed"]
"""The style of values: as the service writes them; all of them as the engine's own text; or as JSON if JSON has the
type (small whole numbers, floats, booleans, JSON itself, arrays) and otherwise as the engine's text."""


class Shape(msgspec.Struct, frozen=True, gc=False):
    """The form in which the client wants rows.

    In a style other than the service's own, each column of a result is an object with its name and the engine's numbers
    for it: `dataTypeID`, `tableID`, `columnID`, `dataTypeSize`, `dataTypeModifier`. Types have no names then.
    """

    row_mode: RowMode = "objects"
    big_numbers: BigNumbers = "number"
    style: ValueStyle = "service"
