"""Probes of types: JSON, arrays, ranges, text search, trigrams, vectors and the rest."""

from tuplegate.data_plane.capabilities.probes import does, fails, gives, probe

_ORDER = """'{"id": 7, "items": [{"sku": "a", "n": 2}, {"sku": "b", "n": 1}]}'::jsonb"""

VALUES = (
    # -- json
    probe("json_operators", "json", "jsonb operators", gives(
        f"select o ->> 'id', o #>> '{{items,1,sku}}', o @> '{{\"id\": 7}}', o ? 'items' from (select {_ORDER} as o) x",
        (7, "b", True, True))),
    probe("json_path", "json", "jsonpath", gives(
        f"select jsonb_path_query({_ORDER}, '$.items[*] ? (@.n > 1).sku')", ('"a"',))),
    probe("json_subscript", "json", "jsonb subscripts", does("create table t (o jsonb)"),
          does("insert into t values ('{\"a\": {\"b\": 1}}')"), does("update t set o['a']['b'] = '2'"),
          gives("select o['a']['b'] from t", (2,))),
    probe("json_table", "json", "JSON_TABLE", gives(
        f"select sku, n from json_table({_ORDER}, '$.items[*]' columns (sku text path '$.sku', n int path '$.n'))",
        ("a", 2), ("b", 1))),
    probe("json_constructors", "json", "JSON_OBJECT and JSON_ARRAY", gives(
        "select json_object('a' : 1), json_array(1, 2)", ('{"a" : 1}', "[1, 2]"))),
    probe("json_aggregate", "json", "jsonb_agg and jsonb_object_agg", gives(
        "select jsonb_agg(x order by x), jsonb_object_agg(x, 1) from (values ('a'), ('b')) as v (x)",
        ('["a", "b"]', '{"a": 1, "b": 1}'))),
    probe("json_index", "json", "GIN index on jsonb", does("create table t (o jsonb)"),
          does("create index on t using gin (o jsonb_path_ops)"), does("insert into t values ('{\"a\": 1}')"),
          gives("select count(*) from t where o @> '{\"a\": 1}'", (1,))),
    # -- arrays
    probe("arrays", "arrays", "Array columns and subscripts", does("create table t (a int[])"),
          does("insert into t values (array[1, 2, 3])"),
          gives("select a[2], a[2:3], cardinality(a) from t", (2, "{2,3}", 3))),
    probe("unnest", "arrays", "unnest WITH ORDINALITY", gives(
        "select x, n from unnest(array['a', 'b']) with ordinality as u (x, n)", ("a", 1), ("b", 2))),
    probe("array_operators", "arrays", "ANY, ALL and containment", gives(
        "select 2 = any (array[1, 2]), 3 > all (array[1, 2]), array[1, 2] @> array[2], array[1] || 2",
        (True, True, True, "{1,2}"))),
    probe("array_index", "arrays", "GIN index on arrays", does("create table t (a text[])"),
          does("create index on t using gin (a)"), does("insert into t values ('{x,y}')"),
          gives("select count(*) from t where a @> '{y}'", (1,))),
    # -- types
    probe("numeric", "types", "Exact numeric arithmetic", gives(
        "select 0.1::numeric + 0.2::numeric, 12345678901234567890123456789 * 2",
        ("0.3", "24691357802469135780246913578"))),
    probe("timestamps", "types", "Time zones and intervals", gives(
        "select (timestamptz '2024-02-28 23:30:00+00' + interval '1 day') at time zone 'UTC'",
        ("2024-02-29 23:30:00",))),
    probe("uuid", "types", "uuid", gives(
        "select substr(gen_random_uuid()::text, 15, 1), 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid",
        (4, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"))),
    probe("uuid_v7", "types", "uuidv7", gives("select uuid_extract_version(uuidv7())", (7,))),
    probe("bytea", "types", "bytea", gives("select '\\x6869'::bytea || '!'::bytea, sha256('') is not null",
                                          ("\\x686921", True))),
    probe("enum", "types", "CREATE TYPE … AS ENUM", does("create type mood as enum ('sad', 'glad')"),
          gives("select 'sad'::mood < 'glad'::mood", (True,)), fails("select 'mad'::mood", "22P02")),
    probe("composite", "types", "Composite types", does("create type pair as (a int, b text)"),
          gives("select (p).b from (select row(1, 'x')::pair as p) x", ("x",))),
    probe("domain", "types", "CREATE DOMAIN with CHECK", does("create domain age as int check (value >= 0)"),
          gives("select 5::age", (5,)), fails("select (-5)::age", "23514")),
    probe("range", "types", "Ranges and multiranges", gives(
        "select int4range(1, 5) @> 4, '{[1,3),[5,7)}'::int4multirange - '{[2,6)}'::int4multirange",
        (True, "{[1,2),[6,7)}"))),
    probe("network", "types", "inet and cidr", gives("select inet '10.1.2.3' << cidr '10.0.0.0/8'", (True,))),
    probe("geometry", "types", "Points and boxes", gives("select box '((0,0),(2,2))' @> point '(1,1)'", (True,))),
    probe("xml", "types", "xml", gives("select xpath('/a/text()', '<a>x</a>'::xml)", ("{x}",))),
    probe("bit_strings", "types", "Bit strings", gives("select b'1010' & b'0110'", ("0010",))),
    probe("collation", "types", "COLLATE", gives(
        "select 'a' < 'B' collate \"C\", lower('Ä' collate \"C.utf8\")", (False, "ä"))),
    probe("large_object", "types", "Large objects", does("create table t as select lo_from_bytea(0, 'hi') as lo"),
          gives("select lo_get(lo) from t", ("\\x6869",)), does("select lo_unlink(lo) from t")),
    # -- full text
    probe("full_text", "full_text", "Text search", gives(
        "select to_tsvector('english', 'The quick foxes jumped') @@ to_tsquery('english', 'fox & jump')", (True,))),
    probe("full_text_rank", "full_text", "Ranking and phrases", gives(
        "select ts_rank(to_tsvector('english', 'cat dog'), to_tsquery('cat')) > 0,"
        " to_tsvector('english', 'fat cat') @@ phraseto_tsquery('english', 'fat cat')", (True, True))),
    probe("full_text_headline", "full_text", "Headlines", gives(
        "select ts_headline('english', 'a fat cat', to_tsquery('cat'))", ("a fat <b>cat</b>",))),
    probe("full_text_index", "full_text", "GIN index for text search", does("create table t (x text)"),
          does("create index on t using gin (to_tsvector('english', x))"), does("insert into t values ('running')"),
          gives("select count(*) from t where to_tsvector('english', x) @@ to_tsquery('english', 'run')", (1,))),
    # -- trigrams and vectors
    probe("trigram_similarity", "trigram", "Similarity", gives(
        "select {ext}.similarity('tuplegate', 'tuplegat') > 0.5, 'word' operator({ext}.%) 'words'", (True, True)),
        extension="pg_trgm"),
    probe("trigram_index", "trigram", "Index for LIKE '%…%'", does("create table t (x text)"),
          does("create index on t using gin (x {ext}.gin_trgm_ops)"), does("insert into t values ('tuplegate')"),
          gives("select count(*) from t where x like '%egat%'", (1,)), extension="pg_trgm"),
    probe("vector_distance", "vectors", "Distances between vectors", gives(
        "select '[0,3]'::{ext}.vector operator({ext}.<->) '[4,0]'::{ext}.vector,"
        " '[1,0]'::{ext}.vector operator({ext}.<=>) '[0,1]'::{ext}.vector", (5, 1)), extension="vector"),
    probe("vector_hnsw", "vectors", "HNSW index", does("create table t (v {ext}.vector(2))"),
          does("insert into t select format('[%s,%s]', g, g)::{ext}.vector from generate_series(1, 50) g"),
          does("create index on t using hnsw (v {ext}.vector_l2_ops)"),
          gives("select v from t order by v operator({ext}.<->) '[3,3]'::{ext}.vector limit 1", ("[3,3]",)),
          extension="vector"),
    probe("vector_ivfflat", "vectors", "IVFFlat index", does("create table t (v {ext}.vector(2))"),
          does("insert into t select format('[%s,%s]', g, g)::{ext}.vector from generate_series(1, 50) g"),
          does("create index on t using ivfflat (v {ext}.vector_cosine_ops) with (lists = 1)"),
          gives("select count(*) from (select from t order by v operator({ext}.<=>) '[1,1]'::{ext}.vector limit 3) x",
                (3,)), extension="vector"),
)  # fmt: skip
