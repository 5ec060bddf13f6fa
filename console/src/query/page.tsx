/** The query page: the editor, its tabs and what they do; results below. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Failure } from "../api/http";
import type { Statement } from "../api/query";
import type { Value } from "../api/types";
import { type Command, useCommands } from "../app/commands";
import { formatRoute, replaceAddress, route } from "../app/router";
import { Menu } from "../parts/menu";
import { useStore } from "../parts/store";
import { copyText, tell } from "../parts/toast";
import { formatSql } from "../sql/format";
import { schema } from "../sql/schema";
import { indexOfPosition, type Part, splitStatements, statementAt } from "../sql/tokens";
import { addDraft, changeDraft, chosenDraft, currentDraft, drafts, openDraft } from "./drafts";
import { DraftTabs } from "./drafttabs";
import { SqlEditor } from "./editor";
import { Library, type LibraryKind, SaveDialog } from "./library";
import { type Parameter, Parameters, readParameter } from "./parameters";
import { ResultPane } from "./resultpane";
import { cancelRunning, explain, explainPrefix, running, runOne, runTogether } from "./results";

const ADDRESS_MAX = 4_000;

/** Return what is to be run: the selection, or the statement at the cursor. */
function chooseParts(editor: SqlEditor): Part[] {
  const { from, to } = editor.selection;
  if (from !== to) {
    return splitStatements(editor.text.slice(from, to)).map((part) => ({
      ...part,
      from: part.from + from,
      to: part.to + from,
    }));
  }
  const part = statementAt(editor.text, from);
  return part ? [part] : [];
}

export function QueryPage() {
  const host = useRef<HTMLDivElement>(null);
  const editor = useRef<SqlEditor | null>(null);
  const draft = useStore(chosenDraft);
  const text = useStore(drafts).find((one) => one.id === draft)?.sql ?? "";
  const [parameters, setParameters] = useState<Parameter[]>([]);
  const [library, setLibrary] = useState<LibraryKind | null>(null);
  const [isSaving, setSaving] = useState(false);
  const known = useStore(schema);
  useSharedQuery();
  const wanted = useMemo(() => Math.max(0, ...splitStatements(text).map((part) => part.params)), [text]);

  const actions = useRef(makeActions(editor, () => parameters));
  actions.current = makeActions(editor, () => parameters);
  useEffect(() => {
    const act = () => actions.current;
    const made = new SqlEditor(host.current!, currentDraft().sql, {
      onChange: (sql) => changeDraft(chosenDraft.value, sql),
      onRun: () => act().run(),
      onRunAll: () => act().runAll(),
      onCancel: cancelRunning,
      onExplain: () => act().explain(false),
      onFormat: () => act().format(),
      onSave: () => setSaving(true),
    });
    editor.current = made;
    made.focus();
    return () => made.destroy();
  }, []);
  useEffect(() => {
    editor.current?.setText(currentDraft().sql);
    editor.current?.unmark();
  }, [draft, text === editor.current?.text]);
  useEffect(() => editor.current?.setSchema(known), [known]);
  useCommands(() => makeCommands(actions.current, setLibrary, setSaving), []);

  return (
    <div class="query-page">
      <h1 class="hidden">Query</h1>
      <DraftTabs />
      <Toolbar actions={actions.current} onLibrary={setLibrary} onSave={() => setSaving(true)} />
      {wanted > 0 && <Parameters count={wanted} parameters={parameters} onChange={setParameters} />}
      <EditorHost host={host} />
      <ResultPane />
      {library && (
        <Library
          kind={library}
          onClose={() => setLibrary(null)}
          onOpen={(sql, name) => {
            openDraft(sql, name);
            setLibrary(null);
          }}
        />
      )}
      {isSaving && (
        <SaveDialog
          draft={currentDraft()}
          onClose={() => {
            setSaving(false);
            editor.current?.focus();
          }}
        />
      )}
    </div>
  );
}

/** Open the query that the address holds, once. It is shown, not run. */
function useSharedQuery(): void {
  const at = useStore(route);
  useEffect(() => {
    const shared = at.page === "query" ? at.params.get("sql") : null;
    if (shared && shared !== currentDraft().sql) openDraft(shared);
  }, [at]);
}

interface Actions {
  run: () => void;
  runAll: () => void;
  explain: (analyze: boolean) => void;
  format: () => void;
  share: () => void;
}

function makeActions(held: { current: SqlEditor | null }, getParameters: () => Parameter[]): Actions {
  const statementOf = (part: Part): Statement => ({
    sql: part.sql,
    params: Array.from({ length: part.params }, (_, at): Value => readParameter(getParameters()[at])),
  });
  const start = async (parts: Part[], work: (statements: Statement[]) => Promise<Failure | null>, prefix = 0) => {
    const editor = held.current;
    if (!editor || running.value) return;
    if (parts.length === 0) {
      tell("There is no statement here to run.", "failed");
      return;
    }
    editor.unmark();
    editor.hideCompletion();
    showAddress(editor.text);
    const textBefore = editor.text;
    const failure = await work(parts.map(statementOf));
    const { position, message, statement } = failure?.body ?? {};
    const part = parts[statement ?? 0];
    if (failure && position && part && editor.text === textBefore)
      editor.mark(part.from + indexOfPosition(part.sql, position - prefix), message ?? "");
  };
  const runParts = (parts: Part[]) =>
    start(parts, (statements) => (statements.length === 1 ? runOne(statements[0]!) : runTogether(statements)));
  return {
    run: () => void (held.current && runParts(chooseParts(held.current))),
    runAll: () => void (held.current && start(splitStatements(held.current.text), runTogether)),
    explain: (analyze) => {
      if (held.current)
        void start(
          chooseParts(held.current).slice(0, 1),
          ([one]) => explain(one!, analyze),
          explainPrefix(analyze).length,
        );
    },
    format: () => held.current?.setText(formatSql(held.current.text)),
    share: () =>
      void copyText(
        location.href.replace(/#.*/, "") + formatRoute("query", [], { sql: held.current?.text ?? "" }),
        "Link copied",
      ),
  };
}

/** The address holds the query that ran, where it is not too long for one. */
function showAddress(sql: string): void {
  const hash = formatRoute("query", [], { sql });
  replaceAddress(hash.length <= ADDRESS_MAX ? hash : formatRoute("query"));
}

function EditorHost({ host }: { host: { current: HTMLDivElement | null } }) {
  const [height, setHeight] = useState(() => Math.max(120, Math.round(window.innerHeight * 0.3)));
  const resize = (event: PointerEvent) => {
    const from = event.clientY;
    const move = (moved: PointerEvent) => setHeight(Math.max(80, height + moved.clientY - from));
    const stop = () => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", stop);
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", stop);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowUp: -20, ArrowDown: 20 }[event.key];
    if (step) setHeight(Math.max(80, height + step));
  };
  return (
    <>
      <div class="editor-host" ref={host} style={{ height: `${height}px` }} />
      <div
        class="splitter"
        role="separator"
        aria-orientation="horizontal"
        aria-label="Height of the editor"
        aria-valuenow={height}
        aria-valuemin={80}
        aria-valuemax={2000}
        tabIndex={0}
        onPointerDown={resize}
        onKeyDown={onKeyDown}
      />
    </>
  );
}

interface ToolbarProps {
  actions: Actions;
  onLibrary: (kind: LibraryKind) => void;
  onSave: () => void;
}

function Toolbar({ actions, onLibrary, onSave }: ToolbarProps) {
  const isRunning = useStore(running) !== null;
  const others = [
    { title: "Format", run: actions.format },
    { title: "Save", run: onSave },
    { title: "Saved", run: () => onLibrary("saved") },
    { title: "History", run: () => onLibrary("history") },
    { title: "Copy link", run: actions.share },
  ];
  return (
    <div class="toolbar query-toolbar" role="toolbar" aria-label="Query">
      {isRunning ? (
        <button type="button" class="danger" onClick={cancelRunning}>
          Cancel
        </button>
      ) : (
        <button type="button" class="primary" onClick={actions.run} title="Ctrl Enter">
          Run
        </button>
      )}
      <button
        type="button"
        disabled={isRunning}
        onClick={actions.runAll}
        title="Ctrl Shift Enter: all statements, or none"
      >
        Run all<span class="wide-only"> as a transaction</span>
      </button>
      <Menu
        label="Explain"
        size="normal"
        items={[
          { title: "Explain", run: () => actions.explain(false) },
          { title: "Explain and analyze", run: () => actions.explain(true) },
        ]}
      />
      <span class="spring" />
      <div class="wide-only toolbar">
        {others.map((item) => (
          <button type="button" class="small quiet" key={item.title} onClick={item.run}>
            {item.title}
          </button>
        ))}
      </div>
      <div class="narrow-only">
        <Menu label="More" items={others} size="normal" />
      </div>
    </div>
  );
}

function makeCommands(
  actions: Actions,
  setLibrary: (kind: LibraryKind) => void,
  setSaving: (is: boolean) => void,
): Command[] {
  const group = "Query";
  return [
    { id: "query:run", group, title: "Run the statement at the cursor", keys: "Ctrl Enter", run: actions.run },
    {
      id: "query:run-all",
      group,
      title: "Run everything as one transaction",
      keys: "Ctrl Shift Enter",
      run: actions.runAll,
    },
    { id: "query:explain", group, title: "Explain", keys: "Ctrl E", run: () => actions.explain(false) },
    { id: "query:analyze", group, title: "Explain and analyze", run: () => actions.explain(true) },
    { id: "query:format", group, title: "Format the SQL", keys: "Ctrl Shift F", run: actions.format },
    { id: "query:new", group, title: "New query tab", run: addDraft },
    { id: "query:save", group, title: "Save the query", keys: "Ctrl S", run: () => setSaving(true) },
    { id: "query:saved", group, title: "Saved queries", run: () => setLibrary("saved") },
    { id: "query:history", group, title: "History of queries", run: () => setLibrary("history") },
    { id: "query:share", group, title: "Copy a link to the query", run: actions.share },
  ];
}
