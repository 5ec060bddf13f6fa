/** Import of a CSV file: a preview with guessed types, then all rows in one transaction. */
import { useState } from "preact/hooks";
import { makeFailure } from "../api/http";
import { session } from "../api/session";
import { formatRoute, go } from "../app/router";
import { cellText } from "../grid/values";
import { useWork } from "../parts/dialog";
import { formatCount, plural } from "../parts/show";
import { FailureBox } from "../parts/states";
import { useStore } from "../parts/store";
import { tell } from "../parts/toast";
import { loadSchema, schema, type Table } from "../sql/schema";
import { columnName, type Csv, guessSeparator, guessType, parseCsv, TYPES } from "./csv";
import { findTarget, importRows, nameTarget, settleImport, type Target } from "./importing";

const FILE_BYTES_MAX = 200 << 20;
const PREVIEW_ROWS = 8;
const GUESSED_ROWS = 5_000;

async function readText(file: File): Promise<string> {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    const hint = "Save it as UTF-8, then choose it again: as it is, letters would be lost.";
    throw makeFailure("no_utf8", "The file is not UTF-8.", hint);
  }
}

/** Read a file, and guess a type for each of its columns. */
async function readFile(file: File): Promise<{ csv: Csv; name: string; targets: Target[] }> {
  if (file.size > FILE_BYTES_MAX) {
    const hint = "Use the command line: tuplegate import reads files of any size.";
    throw makeFailure("too_large", "The file is larger than 200 MB.", hint);
  }
  const text = await readText(file);
  const csv = parseCsv(text, guessSeparator(text));
  if (csv.header.length === 0) throw makeFailure("empty_file", "The file is empty.");
  const sample = csv.rows.slice(0, GUESSED_ROWS);
  const targets = csv.header.map((title, at) => ({
    name: columnName(title),
    type: guessType(sample.map((row) => row[at] ?? null)),
    isUsed: true,
  }));
  return { csv, name: columnName(file.name.replace(/\.[^.]*$/, "")), targets };
}

export function ImportView() {
  if (session.allows("write")) return <ImportForm />;
  const failure = makeFailure("forbidden", "Your key may only read.", "Sign in with a key that has the scope write.");
  return (
    <div class="page">
      <FailureBox failure={failure} />
    </div>
  );
}

function FileDrop({ chosen, onFile }: { chosen: string; onFile: (file: File) => void }) {
  const take = (files: FileList | null | undefined) => {
    const file = files?.[0];
    if (file) onFile(file);
  };
  return (
    <label
      class="drop"
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        take(event.dataTransfer?.files);
      }}
    >
      <span>
        {chosen ? (
          <>
            Read: <bdi class="mono">{chosen}</bdi>. Choose another, or drop it here.
          </>
        ) : (
          "Choose a file, or drop it here. The first line has the names of the columns."
        )}
      </span>
      <input
        type="file"
        accept=".csv,.tsv,.txt,text/csv"
        aria-label="CSV file"
        onChange={(event) => {
          take(event.currentTarget.files);
          // Without this a file that was mended and is chosen again would be no change.
          event.currentTarget.value = "";
        }}
      />
    </label>
  );
}

function ImportForm() {
  const [csv, setCsv] = useState<Csv | null>(null);
  const [chosen, setChosen] = useState("");
  const [name, setName] = useState("");
  const [targets, setTargets] = useState<Target[]>([]);
  const [done, setDone] = useState<number | null>(null);
  const { failure, isBusy, run } = useWork();
  const tables = useStore(schema)?.tables ?? [];
  const existing = findTarget(tables, name);
  const read = (file: File) =>
    run(async () => {
      setCsv(null);
      const found = await readFile(file);
      setCsv(found.csv);
      setChosen(file.name);
      setName(found.name);
      setTargets(found.targets);
    });
  const start = () =>
    run(async () => {
      setDone(0);
      try {
        await settleImport();
        await importRows({ csv: csv!, name, existing, targets }, setDone);
      } finally {
        setDone(null);
      }
      tell(`${plural(csv!.rows.length, "row")} imported into ${nameTarget(existing, name)}.`);
      await loadSchema();
      go(formatRoute("data", [existing?.schema ?? "public", existing?.name ?? name]));
    });
  return (
    <div class="page">
      <div class="page-head">
        <h1>Import a CSV file</h1>
      </div>
      <FileDrop chosen={chosen} onFile={(file) => void read(file)} />
      {failure && <FailureBox failure={failure} />}
      {csv && (
        <>
          <TargetForm name={name} onName={setName} existing={existing} csv={csv} />
          <Preview csv={csv} targets={targets} existing={existing} onChange={setTargets} />
          <div class="toolbar">
            <button
              type="button"
              class="primary"
              disabled={isBusy || !name || csv.problems.length > 0}
              onClick={() => void start()}
            >
              Import {plural(csv.rows.length, "row")}
            </button>
            {done !== null && (
              <span role="status">
                <progress max={csv.rows.length} value={done} aria-label="Rows imported" /> {formatCount(done)} of{" "}
                {formatCount(csv.rows.length)}
              </span>
            )}
          </div>
        </>
      )}
    </div>
  );
}

function TargetForm({
  name,
  onName,
  existing,
  csv,
}: {
  name: string;
  onName: (name: string) => void;
  existing: Table | undefined;
  csv: Csv;
}) {
  return (
    <>
      <label class="field import-name">
        <span>Table</span>
        <input class="mono" value={name} onInput={(event) => onName(event.currentTarget.value)} spellcheck={false} />
      </label>
      <p class="faint">
        {existing
          ? `The rows are added to the table ${nameTarget(existing, name)}.`
          : `A new table ${nameTarget(existing, name)} is made, with types guessed from ${csv.rows.length > GUESSED_ROWS ? `the first ${formatCount(GUESSED_ROWS)} rows` : "all rows"}.`}{" "}
        All rows are imported, or none.
      </p>
      {csv.problems.length > 0 && (
        <FailureBox failure={makeFailure("bad_csv", csv.problems.join(" "), "Mend the file, then choose it again.")} />
      )}
    </>
  );
}

interface PreviewProps {
  csv: Csv;
  targets: Target[];
  existing: Table | undefined;
  onChange: (targets: Target[]) => void;
}

function Preview({ csv, targets, existing, onChange }: PreviewProps) {
  const change = (at: number, changed: Partial<Target>) => onChange(targets.with(at, { ...targets[at]!, ...changed }));
  return (
    <div class="table-wrap">
      <table class="list preview">
        <thead>
          <tr>
            {targets.map((target, at) => (
              <th key={at}>
                <input
                  class="mono"
                  aria-label={`Name of column ${at + 1}`}
                  value={target.name}
                  list={existing ? "import-columns" : undefined}
                  onInput={(event) => change(at, { name: event.currentTarget.value })}
                />
                {existing ? (
                  <span class="faint">
                    {existing.columns.find((column) => column.name === target.name)?.type ?? "no such column"}
                  </span>
                ) : (
                  <select
                    aria-label={`Type of ${target.name}`}
                    value={target.type}
                    onChange={(event) => change(at, { type: event.currentTarget.value })}
                  >
                    {TYPES.map((type) => (
                      <option key={type}>{type}</option>
                    ))}
                  </select>
                )}
                <label class="faint">
                  <input
                    type="checkbox"
                    checked={target.isUsed}
                    aria-label={`Import ${target.name}`}
                    onChange={(event) => change(at, { isUsed: event.currentTarget.checked })}
                  />{" "}
                  import
                </label>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {csv.rows.slice(0, PREVIEW_ROWS).map((row, at) => (
            <tr key={at}>
              {targets.map((_, index) => (
                <td key={index} class="mono">
                  {row[index] === null || row[index] === undefined ? (
                    <span class="null">NULL</span>
                  ) : (
                    <bdi>{cellText(row[index]!.slice(0, 80))}</bdi>
                  )}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {existing && (
        <datalist id="import-columns">
          {existing.columns.map((column) => (
            <option key={column.name} value={column.name} />
          ))}
        </datalist>
      )}
    </div>
  );
}
