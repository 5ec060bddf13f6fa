"""Compiles the modules that every request passes through with mypyc, which makes them about a third faster, and the
module that writes rows with Cython.

`tools/compile.py TARGET` puts a copy of the package there whose hot modules are compiled; it runs with TARGET first on
PYTHONPATH. The sources stay what they are, and run without it. Needs a C compiler. With 0 behind TARGET it does not
optimize, and is done sooner: for tests.
"""

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
HOT = (
    "access/quotas",
    "access/tokens",
    "access/transaction_ids",
    "admission/fair_use/fairness",
    "admission/identity",
    "admission/paths",
    "admission/plane",
    "admission/fair_use/quota",
    "admission/fair_use/seats",
    "admission/fair_use/usage",
    "alias/heads",
    "alias/plane",
    "data_plane/consistency",
    "data_plane/idempotency",
    "data_plane/interactive/ended",
    "data_plane/interactive/finding",
    "data_plane/interactive/handover",
    "data_plane/interactive/held",
    "data_plane/interactive/routes",
    "data_plane/neon/connection_string",
    "data_plane/neon/options",
    "data_plane/neon/routes",
    "data_plane/query",
    "data_plane/timings",
    "data_plane/transaction",
    "data_plane/wire/admission",
    "data_plane/wire/connection/connection",
    "data_plane/wire/connection/ending",
    "data_plane/wire/connection/extended",
    "data_plane/wire/connection/outgoing",
    "data_plane/wire/connection/refusals",
    "data_plane/wire/connection/simple",
    "data_plane/wire/connection/text_rules",
    "data_plane/wire/connection/to_client",
    "data_plane/wire/connection/to_engine",
    "data_plane/wire/connection/unit",
    "data_plane/wire/flow",
    "data_plane/wire/listening",
    "data_plane/wire/messages",
    "data_plane/wire/own_statements",
    "data_plane/wire/prepared_names",
    "data_plane/wire/texts",
    "direct_future",
    "eager",
    "engine/cockroach/dialect/narrow_numbers",
    "engine/cockroach/pools/pool",
    "engine/cockroach/pools/pools",
    "engine/cockroach/query/execute",
    "engine/cockroach/query/run",
    "engine/cockroach/query/session",
    "engine/cockroach/query/stream_run",
    "engine/cockroach/transaction/open_transaction",
    "engine/cockroach/transaction/transaction",
    "engine/libpq/values/column_rewrites",
    "engine/libpq/connections/commands",
    "engine/libpq/connections/connecting",
    "engine/libpq/connections/connection",
    "engine/libpq/connections/server_errors",
    "engine/libpq/pools/frequent_statements",
    "engine/libpq/connections/link",
    "engine/libpq/values/loaders",
    "engine/libpq/pools/measures",
    "engine/libpq/values/parameter_texts",
    "engine/libpq/statements/parameters",
    "engine/libpq/pools/places",
    "engine/libpq/pools/plans",
    "engine/libpq/pools/pool",
    "engine/libpq/pools/target_pools",
    "engine/libpq/values/row_encoder",
    "engine/libpq/values/text_rows",
    "engine/libpq/statements/rows",
    "engine/libpq/pools/turns",
    "engine/port/work",
    "engine/postgres/pools/ending_pool",
    "engine/postgres/pools/pool",
    "engine/postgres/pools/pools",
    "engine/postgres/requests",
    "engine/postgres/query/execute",
    "engine/postgres/query/preparing",
    "engine/postgres/rules/statements",
    "engine/run/attempts",
    "engine/run/run",
    "engine/postgres/query/stream_run",
    "engine/postgres/query/wire_run",
    "engine/postgres/safety/database_state",
    "engine/postgres/safety/guard",
    "engine/postgres/transaction/block",
    "engine/postgres/transaction/deciding",
    "engine/postgres/transaction/histories",
    "engine/postgres/transaction/open_commit",
    "engine/postgres/transaction/open_transaction",
    "engine/postgres/service/records",
    "engine/postgres/transaction/recovery",
    "engine/postgres/rules/blocks",
    "engine/postgres/transaction/transaction",
    "engine/run/open_transaction",
    "engine/run/runner",
    "engine/run/session",
    "engine/run/stages",
    "engine/run/steps",
    "engine/run/stream_run",
    "engine/sql/facts",
    "engine/sql/templates",
    "http/body",
    "http/connection",
    "http/exchange",
    "http/forwarding/answer_reader",
    "http/forwarding/joined",
    "http/forwarding/upstream",
    "http/parsing/framing",
    "http/sharing/intake",
    "http/sharing/memory",
    "http/parsing/message",
    "http/parsing/request_reader",
    "http/requests",
    "http/sharing/connection_turns",
    "http/short_frames",
    "http/upgraded",
    "http/websocket",
    "http/writing",
    "metrics/cells",
    "protocol/statements",
)
BUILT = Path("tuplegate/console/built")
CYTHON = "tuplegate.engine.libpq.values.row_bytes"


def compile_to(target: Path, optimization: str) -> None:
    from Cython.Build import cythonize
    from mypyc.build import mypycify
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    os.chdir(ROOT)
    os.environ["MYPYPATH"] = str(SOURCE)
    modules = [str(SOURCE / "tuplegate" / f"{name}.py") for name in HOT]
    work = target.with_name(f"{target.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    extensions = mypycify(["--strict", *modules], target_dir=str(work / "c"), opt_level=optimization, debug_level="0")
    source = SOURCE / f"{CYTHON.replace('.', '/')}.pyx"
    rows = Extension(CYTHON, [str(source)], extra_compile_args=[f"-O{optimization}"])
    extensions += cythonize([rows], build_dir=str(work / "c"), include_path=[str(SOURCE)], quiet=True)  # type: ignore[no-untyped-call]
    for extension in extensions:
        # Python's own -Wall looks for faults in C that nobody wrote, and takes longer than the translation.
        extension.extra_compile_args.append("-Wno-all")
    build = build_ext(Distribution({"name": "tuplegate", "ext_modules": extensions}))
    build.build_lib, build.build_temp = str(work / "package"), str(work / "objects")
    build.ensure_finalized()
    build.run()
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", BUILT.name)
    shutil.copytree(SOURCE, work / "package", dirs_exist_ok=True, ignore=left_out)
    (work / "package" / BUILT).symlink_to(SOURCE / BUILT)  # the console is built by itself, later too
    shutil.rmtree(target, ignore_errors=True)
    (work / "package").rename(target)
    shutil.rmtree(work)


if __name__ == "__main__":
    compile_to(Path(sys.argv[1]).absolute(), *(sys.argv[2:] or ["3"]))
