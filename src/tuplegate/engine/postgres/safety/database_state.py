"""The state of a database that its pools share, above all whether it has code of the tenant's own.

Code runs without being named in a statement's text. Two questions matter. First, can it leave anything at all on a
connection? Functions can, and stored expressions that move sequences or look at prepared statements. Second, can it
leave one of the two things that `DISCARD ALL` does not remove, the name of a custom setting and the random seed? Only
by one of the server's functions for that, by SET, or by text that it runs. If a function's source names none of these,
it cannot. Code that could commit without waiting for the disk is counted among the latter. `CODE` asks the engine both
questions.
"""

from typing import Final

from tuplegate.engine.libpq.connections.commands import Command
from tuplegate.engine.libpq.pools.definitions import Definitions
from tuplegate.engine.libpq.pools.frequent_statements import OftenSeen
from tuplegate.engine.libpq.pools.turns import Turns
from tuplegate.engine.libpq.values.row_encoder import EncoderCache
from tuplegate.engine.libpq.values.types import TypeRegistry

# Functions of these extensions neither run SQL text nor touch settings beyond their own documented ones.
_INNOCENT_EXTENSIONS: Final = (
    "'vector','pg_trgm','citext','hstore','ltree','unaccent','btree_gin','btree_gist','intarray','fuzzystrmatch','cube',"
    "'seg','earthdistance','bloom'"
)
# Functions of the server that change a setting or the seed, or run text.
_TOUCHING: Final = r"""SELECT oid FROM pg_proc WHERE oid < 16384 AND (
             proname IN ('set_config', 'setseed', 'ts_stat', 'ts_rewrite') OR proname LIKE '%\_to\_xml%')"""
# Other effects that a query could have through a stored expression: take a lock, set an extension's limit, see prepared
# statements; or move a sequence, which is expected of defaults.
_KEEPING: Final = r"""SELECT oid FROM pg_proc
              WHERE proname IN ('set_limit', 'pg_prepared_statement', 'pg_get_backend_memory_contexts')
                 OR proname LIKE 'pg\_%advisory%lock%'
             UNION ALL SELECT 'pg_prepared_statements'::regclass::oid
             UNION ALL SELECT 'pg_backend_memory_contexts'::regclass::oid"""
_ACTING: Final = f"{_KEEPING} UNION ALL SELECT oid FROM pg_proc WHERE proname IN ('nextval', 'setval')"
# The patterns to look for in stored expressions. Each is computed once for all of them: that reads all of `pg_proc`.
_PATTERNS: Final = f"""
  WITH touching AS MATERIALIZED (
    SELECT ':(funcid|relid) (' || string_agg(oid::text, '|') || ') ' AS pattern
      FROM ({_TOUCHING} UNION ALL SELECT 'pg_settings'::regclass::oid) t),
  keeping AS MATERIALIZED (
    SELECT ':(funcid|relid) (' || string_agg(oid::text, '|') || ') ' AS pattern FROM ({_KEEPING}) t),
  acting AS MATERIALIZED (
    SELECT ':(funcid|relid) (' || string_agg(oid::text, '|') || ') ' AS pattern FROM ({_ACTING}) t)"""
_TOUCHES: Final = "~ (SELECT pattern FROM touching)"
_KEEPS: Final = "~ (SELECT pattern FROM keeping)"
_ACTS: Final = "~ (SELECT pattern FROM acting)"
# In the source of a function: words that touch settings or the seed, make commits lazy or keep the engine from saying
# so, run or store text of its own; and SET unless it surely belongs to an UPDATE or to a setting of the server's own,
# whose name has no dot.
_SUSPECT: Final = "|".join(
    (
        r"set_config|pg_settings|setseed|\mseed\M|synchronous_commit|client_min_messages|_to_xml|ts_stat|ts_rewrite|u&",
        r"\mexecute\M|\malter\M|\mload\M|\mimport\M|\mdo\M(?!\s+(nothing|update|also|instead)\M)",
        r"\mcreate\M(?!\s+(unique\s+|unlogged\s+)?(temp|temporary|table|index)\M)",
        r'\mset\M(?!\s*(\(|([a-z_][a-z_0-9]*|"[^".]+")\s*(=|to\M)))',
    )
)
_BYTES_MAX: Final = 4_000_000
_FUNCTIONS_MAX: Final = 5_000
"""The bounds on stored code that is searched; if there is more, assume that it could do anything."""

# OFFSET 0 keeps the engine from evaluating the service's own functions and rules before it leaves them out.
_OWN_FUNCTIONS: Final = f"""
  SELECT p.* FROM pg_proc p
         LEFT JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
         LEFT JOIN pg_extension e ON e.oid = d.refobjid
   WHERE p.oid >= 16384
     AND NOT (e.oid IS NULL AND p.pronamespace IN ('tuplegate'::regnamespace, 'pg_catalog'::regnamespace))
     AND (e.extname IN ({_INNOCENT_EXTENSIONS}) AND p.proowner = 10) IS NOT TRUE OFFSET 0"""
# A tenant can add a function of its own to an extension, and an extension to any schema if the server permits that.
_OWN_RULES: Final = (
    "SELECT r.* FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class"
    " WHERE r.oid >= 16384 AND c.relnamespace NOT IN ('tuplegate'::regnamespace, 'pg_catalog'::regnamespace)"
    " OFFSET 0"
)
_RULES: Final = f"SELECT FROM ({_OWN_RULES}) r WHERE ev_qual::text {{0}} OR ev_action::text {{0}}"
_POLICIES: Final = "SELECT FROM pg_policy WHERE polqual::text {0} OR polwithcheck::text {0}"
# The engine tells the length of a stored text without reading it.
_STORED: Final = f"""
  (SELECT count(*) FROM pg_proc WHERE oid >= 16384) > {_FUNCTIONS_MAX}
  OR coalesce((SELECT sum(octet_length(prosrc) + coalesce(octet_length(prosqlbody::text), 0)) FROM pg_proc
                WHERE oid >= 16384), 0)
   + coalesce((SELECT sum(octet_length(ev_action::text)) FROM ({_OWN_RULES}) r), 0)
   + coalesce((SELECT sum(coalesce(octet_length(polqual::text), 0) + coalesce(octet_length(polwithcheck::text), 0))
                 FROM pg_policy), 0)
   + coalesce((SELECT sum(octet_length(adbin::text)) FROM pg_attrdef), 0)
   + coalesce((SELECT sum(octet_length(conbin::text)) FROM pg_constraint), 0)
   + coalesce((SELECT sum(octet_length(tgqual::text)) FROM pg_trigger), 0)
   + coalesce((SELECT sum(octet_length(typdefaultbin::text)) FROM pg_type), 0) > {_BYTES_MAX}"""


def _find_stored(matches: str, functions: str, matches_default: str) -> str:
    """Return the condition that a stored expression calls one of the functions. Defaults may call some of them."""
    return f"""OR EXISTS ({_RULES.format(matches)})
           OR EXISTS ({_POLICIES.format(matches)})
           OR EXISTS (SELECT FROM pg_trigger WHERE tgqual::text {matches})
           OR EXISTS (SELECT FROM pg_operator WHERE oid >= 16384 AND oprcode IN ({functions}))
           OR EXISTS (SELECT FROM pg_cast WHERE oid >= 16384 AND castfunc IN ({functions}))
           OR EXISTS (SELECT FROM pg_attrdef WHERE adbin::text {matches_default})
           OR EXISTS (SELECT FROM pg_constraint WHERE conbin::text {matches})
           OR EXISTS (SELECT FROM pg_type WHERE typdefaultbin::text {matches_default})"""


CODE_FUNCTION: Final = f"""
CREATE FUNCTION tuplegate.code(OUT is_lasting boolean, OUT is_there boolean, OUT role_has_settings boolean)
LANGUAGE sql STABLE
BEGIN ATOMIC{_PATTERNS}
  SELECT CASE WHEN s.too_much THEN true ELSE
           EXISTS (SELECT FROM ({_OWN_FUNCTIONS}) f JOIN pg_language l ON l.oid = f.prolang
                    WHERE l.lanname NOT IN ('sql', 'plpgsql') OR f.proconfig IS NOT NULL OR f.prosrc ~* '{_SUSPECT}'
                       OR f.prosqlbody::text {_TOUCHES} OR f.proargdefaults::text {_TOUCHES})
           {_find_stored(_TOUCHES, _TOUCHING, _TOUCHES)}
         END,
         CASE WHEN s.too_much THEN true ELSE
           EXISTS ({_OWN_FUNCTIONS})
           {_find_stored(_ACTS, _ACTING, _KEEPS)}
         END,
         tuplegate.role_has_settings()
    FROM (SELECT {_STORED} AS too_much OFFSET 0) s;
END
"""
CODE: Final = Command(b"SELECT * FROM tuplegate.code()", begins=False)  # it comes in the transaction of another
"""Whether there is code that can leave something that `DISCARD ALL` does not remove; whether there is code at all; and
whether the role was given settings of its own."""


class DatabaseState:
    """The state of one database.

    `full_at`: it has reached this bound on its bytes. `version` is that of the definitions at the last `refresh`, which
    comes before any use of the facts here.
    """

    def __init__(self, types: TypeRegistry, definitions: Definitions) -> None:
        self.encoders = EncoderCache(types)
        self.often_seen = OftenSeen()
        self.has_code = True
        self.has_lasting_code = True
        """Code whose traces `DISCARD ALL` may not remove."""
        self.code_checked_at = 0.0
        self.full_at: int | None = None
        self.refusals = 0
        """The number of requests that were refused because the database was full."""
        self.turns = Turns()
        self._definitions = definitions
        self.may_keep = definitions.are_known
        """Whether cached facts about definitions may be used while the version stays the same."""
        self._current = definitions.current
        self.version = definitions.version
        self._answered_at: int | None = None
        """The version that the last answer holds for."""

    def refresh(self) -> None:
        """Forget all facts from before the last change, whichever worker has made it."""
        if self._current[0] != self.version:
            self.version = self._current[0]
            self.may_keep = self._definitions.are_known
            self._distrust()
            self.encoders.forget()

    def _distrust(self) -> None:
        self.has_code = True
        self.has_lasting_code = True

    def note_change(self) -> None:
        """Note that a statement was run that can make code, or change the meaning of a name."""
        self._definitions.note_change()
        self._distrust()

    def begin_doubt(self) -> None:
        """Note that such a statement begins, or was given up and may still commit: no answer counts until `end_doubt`.
        Others see its effects as soon as the engine has committed it, before we learn of that."""
        self._definitions.begin_doubt()
        self._distrust()

    def end_doubt(self) -> None:
        """Note that the statement has ended, so that its effects can be asked for."""
        self._definitions.end_doubt()
        self._distrust()

    def must_ask(self, oldest: float) -> bool:
        """Return whether the last answer is from before a change, or from before `oldest` on the loop's clock."""
        return self._answered_at != self._definitions.version or self.code_checked_at < oldest

    def ask(self) -> int:
        """Return the version to pass to `answer`. Call it before the engine is asked whether there is code."""
        return self._definitions.version

    def answer(self, asked: int, *, has_code: bool, has_lasting_code: bool, now: float) -> None:
        self.refresh()
        if asked == self.version and not self._definitions.is_in_doubt:
            self.has_code = has_code or has_lasting_code
            self.has_lasting_code = has_lasting_code
            self.code_checked_at = now
            self._answered_at = asked
            self.may_keep = self._definitions.are_known
