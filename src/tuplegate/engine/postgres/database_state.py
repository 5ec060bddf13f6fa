"""What the pools of one database know of it together, above all whether it has code of the tenant's own.

Code is what runs without being named in a statement's text. Two questions matter. Whether it could leave anything at
all on a connection: functions could, and stored expressions that move sequences or look at what is prepared. And
whether it could leave one of the two things that `DISCARD ALL` does not remove, the name of a custom setting and the
random seed: only by a function of the server that does so, by SET, or by text that it runs. Where a function's source
names none of these, it cannot. Code that could commit without waiting for the disk is counted among the latter. The
question is asked in the engine, with `CODE`.
"""

from typing import Final

from tuplegate.engine.postgres.connection import Command
from tuplegate.engine.postgres.kept import OftenSeen
from tuplegate.engine.postgres.turns import Turns
from tuplegate.engine.postgres.types import TypeRegistry
from tuplegate.engine.postgres.values import EncoderCache

# Functions of these extensions neither run SQL text nor touch settings beyond their own documented ones.
_INNOCENT_EXTENSIONS: Final = (
    "'vector','pg_trgm','citext','hstore','ltree','unaccent','btree_gin','btree_gist','intarray','fuzzystrmatch','cube',"
    "'seg','earthdistance','bloom'"
)
# Functions of the server that change a setting or the seed, or run text.
_TOUCHING = """SELECT oid FROM pg_catalog.pg_proc WHERE oid < 16384 AND (proname IN ('set_config', 'setseed', 'ts_stat',
               'ts_rewrite') OR proname LIKE '%\\_to\\_xml%')"""
_TOUCHES: Final = f"""~ (':(funcid|relid) (' || (
             SELECT pg_catalog.string_agg(oid::text, '|') FROM (
               {_TOUCHING}
               UNION ALL SELECT 'pg_catalog.pg_settings'::pg_catalog.regclass::pg_catalog.oid) t) || ') ')"""
# What a query could otherwise do through a stored expression: move a sequence, set an extension's limit, see what is
# prepared.
_ACTS: Final = """~ (':(funcid|relid) (' || (
           SELECT pg_catalog.string_agg(oid::text, '|') FROM (
             SELECT oid FROM pg_catalog.pg_proc
              WHERE proname IN ('nextval', 'setval', 'set_limit', 'pg_prepared_statement',
                                'pg_get_backend_memory_contexts')
             UNION ALL SELECT 'pg_catalog.pg_prepared_statements'::pg_catalog.regclass::pg_catalog.oid
             UNION ALL SELECT 'pg_catalog.pg_backend_memory_contexts'::pg_catalog.regclass::pg_catalog.oid
           ) t) || ') ')"""
# In the source of a function: what touches settings or the seed, makes commits lazy, runs or stores text of its own;
# and SET unless it is surely that of an UPDATE or of a setting of the server's own, whose name has no dot.
_SUSPECT = """set_config|setseed|synchronous_commit|_to_xml|ts_stat|ts_rewrite|u&
              |\\mexecute\\M|\\malter\\M|\\mload\\M|\\mimport\\M
              |\\mcreate\\M(?!\\s+(unique\\s+|unlogged\\s+)?(temp|temporary|table|index)\\M)
              |\\mset\\M(?!\\s*(\\(|([a-z_][a-z_0-9]*|"[^".]+")\\s*(=|to\\M)))"""
_SUSPECT = "".join(_SUSPECT.split())
_TREES_MAX: Final = 4_000_000
"""Bytes of stored views and rules, as they lie on disk, that are looked through; where there are more, they are taken
for code that could do anything."""

_OWN_FUNCTIONS: Final = f"""
  SELECT p.* FROM pg_catalog.pg_proc p
   WHERE p.oid >= 16384 AND p.pronamespace <> 'tuplegate'::pg_catalog.regnamespace AND NOT EXISTS (
     SELECT FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
      WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid AND d.deptype = 'e'
        AND e.extname IN ({_INNOCENT_EXTENSIONS}))"""
_RULES: Final = "SELECT FROM pg_catalog.pg_rewrite WHERE oid >= 16384 AND (ev_qual::text {0} OR ev_action::text {0})"
_POLICIES: Final = "SELECT FROM pg_catalog.pg_policy WHERE polqual::text {0} OR polwithcheck::text {0}"
CODE: Final = Command(
    f"""
SELECT EXISTS (SELECT FROM ({_OWN_FUNCTIONS}) f JOIN pg_catalog.pg_language l ON l.oid = f.prolang
                WHERE l.lanname NOT IN ('sql', 'plpgsql') OR f.proconfig IS NOT NULL OR f.prosrc ~* '{_SUSPECT}'
                   OR f.prosqlbody::text {_TOUCHES} OR f.proargdefaults::text {_TOUCHES})
       OR (SELECT pg_catalog.sum(pg_catalog.pg_column_size(ev_action)) FROM pg_catalog.pg_rewrite WHERE oid >= 16384)
          > {_TREES_MAX}
       OR EXISTS ({_RULES.format(_TOUCHES)})
       OR EXISTS ({_POLICIES.format(_TOUCHES)})
       OR EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgqual::text {_TOUCHES})
       OR EXISTS (SELECT FROM pg_catalog.pg_operator WHERE oid >= 16384 AND oprcode IN ({_TOUCHING}))
       OR EXISTS (SELECT FROM pg_catalog.pg_cast WHERE oid >= 16384 AND castfunc IN ({_TOUCHING}))
       OR EXISTS (SELECT FROM pg_catalog.pg_attrdef WHERE adbin::text {_TOUCHES})
       OR EXISTS (SELECT FROM pg_catalog.pg_constraint WHERE conbin::text {_TOUCHES})
       OR EXISTS (SELECT FROM pg_catalog.pg_type WHERE typdefaultbin::text {_TOUCHES}),
       EXISTS ({_OWN_FUNCTIONS}) OR EXISTS ({_RULES.format(_ACTS)}) OR EXISTS ({_POLICIES.format(_ACTS)}),
       tuplegate.role_has_settings()
""".encode(),
    begins=False,  # it comes in the transaction of another
)
"""Whether there is code that can leave what `DISCARD ALL` does not remove; whether there is code at all; and whether
the role was given settings of its own."""


class DatabaseState:
    """See the module's text.

    `crowded`: it holds so many of the engine's locks that nothing new may begin there. `full_at`: it is larger than so
    many bytes, which is all that it may have.
    """

    def __init__(self, types: TypeRegistry) -> None:
        self.encoders = EncoderCache(types)
        self.often_seen = OftenSeen()
        self.has_code = True
        self.has_lasting_code = True
        """Code whose traces `DISCARD ALL` may not remove."""
        self.code_checked_at = 0.0
        self.crowded = False
        self.full_at: int | None = None
        self.turns = Turns()
        self.forgotten_after = 0
        """So many changes had there been when what is known of types was forgotten last."""
        self.changes = 0
        """Statements that were run so far which can make code, or change what a name means."""
        self._answered_after = -1
        self._in_doubt = 0

    def may_have_changed(self) -> None:
        """A statement was run that can make code: nothing is taken for granted until it is asked again."""
        self.has_code = True
        self.has_lasting_code = True
        self.changes += 1

    def begin_doubt(self) -> None:
        """A statement was given up that may still run, and commit: no answer counts until `end_doubt`."""
        self._in_doubt += 1
        self.may_have_changed()

    def end_doubt(self) -> None:
        """The statement has ended; what it has done can be asked for."""
        self._in_doubt -= 1
        self.may_have_changed()

    def must_ask(self, oldest: float) -> bool:
        """Whether the last answer is from before a change, or from before `oldest` on the loop's clock."""
        return self._answered_after != self.changes or self.code_checked_at < oldest

    def ask(self) -> int:
        """To be called before the engine is asked whether there is code; the answer counts only with what it gives."""
        return self.changes

    def answer(self, asked: int, *, has_code: bool, has_lasting_code: bool, now: float) -> None:
        if asked == self.changes and not self._in_doubt:
            self.has_code = has_code or has_lasting_code
            self.has_lasting_code = has_lasting_code
            self.code_checked_at = now
            self._answered_after = asked
