/** An editor in the place of a cell. Enter stages, Escape leaves, Ctrl 0 is NULL. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { Column } from "../sql/schema";

interface CellEditorProps {
  column: Column;
  value: string | null;
  onDone: (value: string | null) => void;
  onCancel: () => void;
}

export function CellEditor({ column, value, onDone, onCancel }: CellEditorProps) {
  const [text, setText] = useState(value ?? "");
  const [isNull, setNull] = useState(value === null);
  const element = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    element.current?.focus();
    element.current?.select();
  }, []);
  const result = () => (isNull ? null : text);
  const onKeyDown = (event: KeyboardEvent) => {
    event.stopPropagation();
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      onDone(result());
    } else if (event.key === "Escape") {
      event.preventDefault();
      onCancel();
    } else if (event.key === "0" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (column.nullable) onDone(null);
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
      <div class="cell-editor-foot">
        {column.type === "bool" &&
          ["true", "false"].map((word) => (
            <button type="button" class="small" key={word} onClick={() => onDone(word)}>
              {word}
            </button>
          ))}
        {column.nullable && (
          <button type="button" class="small" onClick={() => onDone(null)} title="Ctrl 0">
            NULL
          </button>
        )}
        <button type="button" class="small primary" onClick={() => onDone(result())} title="Enter">
          Stage
        </button>
        <button type="button" class="small quiet" onClick={onCancel} title="Escape">
          Leave
        </button>
      </div>
    </div>
  );
}
