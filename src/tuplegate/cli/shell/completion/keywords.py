"""SQL keywords that Tab completes, and those that cannot be names without quotes."""

_WORDS = """
abort add all alter always analyze and any array as asc atomic authorization begin between bigint boolean by bytea
cascade case cast check cluster collate column comment commit concurrently conflict constraint create cross
current_date current_timestamp current_user cursor database date default deferrable delete desc distinct do domain
double drop each else end enum except exclude execute exists explain extension false fetch filter first for foreign
from full function generated grant group grouping having identity if ilike in index inherits inner insert instead
integer intersect interval into is join json jsonb key language last lateral left like limit locked materialized merge
natural no not nothing null nullif nulls numeric offset on only or order outer over partition policy precision primary
procedure raise range read real recursive references refresh reindex rename replace restrict returning returns revoke
right role rollback row rows savepoint schema security select sequence serial set setof show similar skip smallint
some start stored table tablesample temporary text then time timestamp timestamptz to trigger true truncate type union
unique unlogged update using uuid vacuum values varchar view when where window with within
"""
_RESERVED_WORDS = """
all and any array as asc both case cast check collate column constraint create default desc distinct do else end
except false for foreign from grant group having in initially intersect into lateral leading limit not null offset on
only or order primary references returning select some table then to true union unique user using variadic when where
window with
"""

KEYWORDS = tuple(_WORDS.split())
RESERVED = frozenset(_RESERVED_WORDS.split())
