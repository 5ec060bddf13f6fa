"""Finds out whether an extension's library runs on this machine's processor, before tenants can use it.

Contract: `probe` uses the extension in PostgreSQL's single-user mode, on data that is made for it and thrown away, and
returns whether the process survived. The engine itself never meets the library: a crash of one of its processes would
restart all of them.

pgvector is compiled for the processor of whoever built it. On an older one its first distance is an undefined
instruction: any tenant could stop the engine for everybody with one SELECT.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tuplegate.engine.bundled.binaries import PROGRAM_S, Binaries, before_exec, make_child_options, run_program
from tuplegate.engine.bundled.data_directory import MAKING, BundledEngineError, DataDirectory

NAME: Final = "vector"

# Long enough for the widest loop and its remainder, short enough to take a few milliseconds.
_LENGTHS: Final = (1, 3, 8, 17, 67, 200)
_VECTORS: Final = """
SELECT array_agg(a <-> b), array_agg(a <#> b), array_agg(a <=> b), array_agg(a <+> b), array_agg(a + b),
       array_agg(a - b), array_agg(a * b), array_agg(a < b), sum(a), avg(a), array_agg(l2_normalize(a)),
       array_agg(binary_quantize(a)), array_agg(a::real[]), array_agg(subvector(a, 1, 1)), array_agg(a::text)
  FROM (SELECT array_fill(i::real, ARRAY[{length}])::{type} AS a, array_fill(1.5::real, ARRAY[{length}])::{type} AS b
          FROM generate_series(1, 3) i) v
"""
_SPARSE: Final = """
SELECT a <-> b, a <#> b, a <=> b, a <+> b, l2_normalize(a), a::vector, a::text
  FROM (SELECT array_fill(1.5::real, ARRAY[{length}])::sparsevec AS a,
               array_fill(2::real, ARRAY[{length}])::sparsevec AS b) s
"""
_BITS: Final = "SELECT repeat('10', {length})::bit varying <~> repeat('1', 2 * {length})::bit varying"
_INDEXES: Final = """
CREATE TEMP TABLE probe ON COMMIT DROP AS
  SELECT array_fill(i::real, ARRAY[67])::vector(67) AS v, array_fill(i::real, ARRAY[67])::halfvec(67) AS h,
         array_fill(i::real, ARRAY[67])::sparsevec(67) AS s,
         binary_quantize(array_fill(i::real, ARRAY[67])::vector) AS b
    FROM generate_series(1, 100) i;
ALTER TABLE probe ALTER b TYPE bit(67) USING b::bit(67);
CREATE INDEX ON probe USING hnsw (v vector_l2_ops); CREATE INDEX ON probe USING hnsw (h halfvec_cosine_ops);
CREATE INDEX ON probe USING hnsw (s sparsevec_ip_ops); CREATE INDEX ON probe USING hnsw (b bit_hamming_ops);
CREATE INDEX ON probe USING hnsw (v vector_l1_ops);
CREATE INDEX ON probe USING ivfflat (v vector_l2_ops) WITH (lists = 2);
CREATE INDEX ON probe USING ivfflat (h halfvec_ip_ops) WITH (lists = 2);
CREATE INDEX ON probe USING ivfflat (b bit_hamming_ops) WITH (lists = 2);
SET LOCAL enable_seqscan = off;
SELECT v FROM probe ORDER BY v <-> (SELECT v FROM probe LIMIT 1) LIMIT 5;
SELECT h FROM probe ORDER BY h <=> (SELECT h FROM probe LIMIT 1) LIMIT 5;
INSERT INTO probe SELECT * FROM probe;
"""


def statements() -> list[str]:
    """Return the statements of the probe: every operation, at lengths that reach every loop, and both kinds of
    index."""
    made = [_VECTORS.format(length=length, type=name) for length in _LENGTHS for name in ("vector", "halfvec")]
    made += [text.format(length=length) for length in _LENGTHS for text in (_SPARSE, _BITS)]
    return ["BEGIN", "SET LOCAL search_path = public", f"CREATE EXTENSION {NAME} SCHEMA public", *made, _INDEXES]


def probe(binaries: Binaries, directory: DataDirectory, extensions: Path) -> bool:
    """Return whether a process survives the use of the extension. A statement that fails is no crash."""
    place = Path(tempfile.mkdtemp(prefix=MAKING, dir=directory.path))
    try:
        os.chown(place, directory.account.uid, directory.account.gid)
        initdb = [str(binaries.path / "initdb"), "-D", str(place), "-U", "probe", "--encoding=UTF8", "--locale=C"]
        run_program([*initdb, "--no-sync", "--no-instructions"], place, directory.account)
        command = [str(binaries.path / "postgres"), "--single", "-j", "-D", str(place)]
        command += ["-c", f"extension_control_path={extensions}:$system", "-c", "fsync=off", "template1"]
        options = make_child_options(place, directory.account)
        del options["stdin"]
        done = subprocess.run(  # noqa: S603 — the engine's program, our arguments
            command,
            input="".join(f"{statement};\n\n" for statement in statements()).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROGRAM_S,
            preexec_fn=before_exec(signal.SIGKILL),
            check=False,
            **options,
        )
        return done.returncode >= 0
    except (OSError, subprocess.SubprocessError) as exc:
        raise BundledEngineError(f"an extension could not be tried in {place}: {exc}") from exc
    finally:
        shutil.rmtree(place, ignore_errors=True)


def describe_machine(library: Path) -> str:
    """Return a digest of the processor's abilities and of a library: the probe's result holds while the digest is the
    same."""
    abilities = set()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
        abilities = {line for line in lines if line.lower().startswith(("flags", "features"))}
    status = library.stat()
    return hashlib.sha256(f"{sorted(abilities)} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()
