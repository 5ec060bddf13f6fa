/** An editor in the place of a cell. Enter stages, Escape leaves, Ctrl 0 is NULL. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { Column } from "../sql/schema";

interface CellEditorProps {
  column: Column;
  value: string | null;
  onStage: (value: string | null) => void;
  onLeave: () => void;
  /** Called when the reader has decided, after either. */
  onDone: () => void;
}

export function CellEditor({ column, value, onStage, onLeave, onDone }: CellEditorProps) {
  const [text, setText] = useState(value ?? "");
  const [isNull, setNull] = useState(value === null);
  const element = useRef<HTMLTextAreaElement>(null);
  const result = () => (isNull ? null : restoreBreaks(text, value));
  const isSettled = useRef(false);
  const stage = (typed: string | null) => {
    isSettled.current = true;
    onStage(typed);
    onDone();
  };
  const leave = () => {
    isSettled.current = true;
    onLeave();
    onDone();
  };
  useStagingOfTheRest(
    () => !isSettled.current && result() !== value,
    () => onStage(result()),
  );
  useEffect(() => {
    element.current?.focus();
    element.current?.select();
  }, []);
  const onKeyDown = (event: KeyboardEvent) => {
    event.stopPropagation();
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      stage(result());
    } else if (event.key === "Escape") {
      event.preventDefault();
      leave();
    } else if (event.key === "0" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (column.nullable) stage(null);
    }
  };
  return (
    <div
      class="cell-editor"
      onMouseDown={(event) => event.stopPropagation()}
      onDblClick={(event) => event.stopPropagation()}
    >
      <textarea
        ref={element}
        value={text}
        aria-label={`New value of ${column.name}`}
        placeholder={isNull ? "NULL" : ""}
        spellcheck={false}
        rows={text.length > 60 ? 6 : 1}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setNull(false);
        }}
        onKeyDown={onKeyDown}
      />
      <EditorFoot column={column} onStage={stage} onResult={() => stage(result())} onLeave={leave} />
    </div>
  );
}

/** Give a text the line breaks that its value had: a text area makes all of them LF. */
function restoreBreaks(text: string, value: string | null): string {
  if (!value?.includes("\r") || text === value) return text;
  if (text === value.replace(/\r\n?/g, "\n")) return value;
  const breaks = new Set(value.match(/\r\n|\r|\n/g));
  return breaks.size === 1 ? text.replaceAll("\n", [...breaks][0]!) : text;
}

interface EditorFootProps {
  column: Column;
  onStage: (value: string | null) => void;
  onResult: () => void;
  onLeave: () => void;
}

function EditorFoot({ column, onStage, onResult, onLeave }: EditorFootProps) {
  return (
    <div class="cell-editor-foot">
      {column.type === "bool" &&
        ["true", "false"].map((word) => (
          <button type="button" class="small" key={word} onClick={() => onStage(word)}>
            {word}
          </button>
        ))}
      {column.nullable && (
        <button type="button" class="small" onClick={() => onStage(null)} title="Ctrl 0">
          NULL
        </button>
      )}
      <button type="button" class="small primary" onClick={onResult} title="Enter">
        Stage
      </button>
      <button type="button" class="small quiet" onClick={onLeave} title="Escape">
        Leave
      </button>
    </div>
  );
}

/** Stage what was typed when the editor goes without a decision: the page is loaded again, or the row is out of sight. */
function useStagingOfTheRest(isTyped: () => boolean, stage: () => void): void {
  const latest = useRef({ isTyped, stage });
  latest.current = { isTyped, stage };
  useEffect(() => {
    const keep = () => {
      if (latest.current.isTyped()) latest.current.stage();
    };
    const ask = (event: Event) => {
      if (latest.current.isTyped()) event.preventDefault();
    };
    window.addEventListener("pagehide", keep);
    window.addEventListener("beforeunload", ask);
    return () => {
      window.removeEventListener("pagehide", keep);
      window.removeEventListener("beforeunload", ask);
      keep();
    };
  }, []);
}
