"""Values of every type, both ways, against the real engine: more of them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.http.test_values import check_arrays, check_both_ways, check_values, every_kind, wire
from tests.http.test_values_model import Wire
from tests.http.test_values_types import Kind

__all__ = ["wire"]  # a fixture

many = settings(max_examples=8, deadline=None, print_blob=True)


@every_kind
@many
@given(data=st.data())
def test_a_value_is_what_the_engine_writes(wire: Wire, kind: Kind, data: st.DataObject) -> None:
    """Each value of a column follows from the engine's text by the rule for its type."""
    check_values(wire, kind, data)


@every_kind
@many
@given(data=st.data())
def test_an_array_is_its_elements_nested(wire: Wire, kind: Kind, data: st.DataObject) -> None:
    """Arrays of any depth and lower bound, with NULLs, hold what their elements are by themselves."""
    check_arrays(wire, kind, data)


@every_kind
@many
@given(data=st.data())
def test_what_is_read_can_be_sent_back(wire: Wire, kind: Kind, data: st.DataObject) -> None:
    """A column of the same type takes what was read, a value or an array, and then holds the same."""
    check_both_ways(wire, kind, data)
