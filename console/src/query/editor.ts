/** The SQL editor. It lives in a shadow root: there CodeMirror uses constructed style sheets, which the policy allows. */
import {
  autocompletion,
  closeBrackets,
  closeBracketsKeymap,
  closeCompletion,
  type Completion,
  type CompletionContext,
  completionKeymap,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { PostgreSQL, sql as sqlLanguage, type SQLNamespace } from "@codemirror/lang-sql";
import { bracketMatching, HighlightStyle, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { lintKeymap, setDiagnostics } from "@codemirror/lint";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { Compartment, EditorState, type Extension, Prec } from "@codemirror/state";
import {
  drawSelection,
  EditorView,
  highlightActiveLine,
  highlightSpecialChars,
  keymap,
  lineNumbers,
  placeholder,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";
import type { Schema } from "../sql/schema";

const THEME = EditorView.theme({
  "&": { height: "100%", fontSize: "13px", color: "var(--text)", backgroundColor: "var(--ground)" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-content": { caretColor: "var(--accent)", padding: "8px 0" },
  ".cm-gutters": { backgroundColor: "var(--ground)", color: "var(--faint)", border: "none", paddingLeft: "6px" },
  "&.cm-focused": { outline: "none" },
  ".cm-activeLine": { backgroundColor: "var(--shade)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "var(--selection)",
  },
  ".cm-cursor": { borderLeftColor: "var(--accent)", borderLeftWidth: "2px" },
  ".cm-tooltip": {
    backgroundColor: "var(--raised)",
    color: "var(--text)",
    border: "1px solid var(--line-strong)",
    borderRadius: "6px",
    boxShadow: "var(--shadow)",
  },
  ".cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)", fontSize: "12px" },
  ".cm-tooltip-autocomplete > ul > li[aria-selected]": { backgroundColor: "var(--accent-soft)", color: "var(--text)" },
  ".cm-completionDetail": { color: "var(--muted)", fontStyle: "normal" },
  ".cm-matchingBracket": { backgroundColor: "var(--accent-soft) !important", outline: "none" },
  ".cm-placeholder": { color: "var(--faint)" },
  ".cm-panels": { backgroundColor: "var(--raised)", color: "var(--text)" },
  ".cm-lintRange-error": {
    backgroundImage: "none",
    textDecoration: "underline wavy var(--bad) 1.5px",
    textUnderlineOffset: "3px",
  },
  ".cm-diagnostic": { borderLeftColor: "var(--bad)", fontFamily: "var(--sans)", fontSize: "13px" },
});

const COLORS = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--sql-keyword)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--sql-string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--sql-number)" },
  { tag: [tags.lineComment, tags.blockComment], color: "var(--faint)", fontStyle: "italic" },
  { tag: tags.typeName, color: "var(--sql-type)" },
  { tag: tags.operator, color: "var(--muted)" },
]);

export interface EditorCallbacks {
  onChange: (sql: string) => void;
  onRun: () => void;
  onRunAll: () => void;
  onCancel: () => boolean;
  onExplain: () => void;
  onFormat: () => void;
  onSave: () => void;
}

export class SqlEditor {
  readonly view: EditorView;
  #language = new Compartment();

  constructor(host: HTMLElement, text: string, callbacks: EditorCallbacks) {
    const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
    this.view = new EditorView({
      root,
      parent: root as unknown as HTMLElement,
      state: this.#makeState(text, callbacks),
    });
  }

  #makeState(text: string, callbacks: EditorCallbacks): EditorState {
    return EditorState.create({
      doc: text,
      extensions: [
        Prec.highest(keymap.of(makeKeys(callbacks))),
        lineNumbers(),
        history(),
        drawSelection(),
        indentOnInput(),
        bracketMatching(),
        closeBrackets(),
        highlightActiveLine(),
        // Marks that change the order of letters or take no room: a shared query must not look like another one.
        highlightSpecialChars({ addSpecialChars: /[\u200c\u200d\u202a-\u202c\u2060-\u2064\u2068]/g }),
        highlightSelectionMatches(),
        search({ top: true }),
        autocompletion({ maxRenderedOptions: 60 }),
        keymap.of([
          ...closeBracketsKeymap,
          ...defaultKeymap,
          ...searchKeymap,
          ...historyKeymap,
          ...completionKeymap,
          ...lintKeymap,
          indentWithTab,
        ]),
        this.#language.of(makeLanguage(null)),
        syntaxHighlighting(COLORS),
        THEME,
        EditorView.lineWrapping,
        placeholder("select … — Ctrl Enter runs the statement at the cursor"),
        EditorView.contentAttributes.of({
          "aria-label": "SQL",
          spellcheck: "false",
          autocorrect: "off",
          autocapitalize: "off",
        }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) callbacks.onChange(update.state.doc.toString());
        }),
      ],
    });
  }

  get text(): string {
    return this.view.state.doc.toString();
  }

  get selection(): { from: number; to: number } {
    const { from, to } = this.view.state.selection.main;
    return { from, to };
  }

  setText(text: string): void {
    if (text === this.text) return;
    this.view.dispatch({
      changes: { from: 0, to: this.view.state.doc.length, insert: text },
      selection: { anchor: Math.min(this.selection.from, text.length) },
    });
  }

  setSchema(schema: Schema | null): void {
    this.view.dispatch({ effects: this.#language.reconfigure(makeLanguage(schema)) });
  }

  hideCompletion(): void {
    closeCompletion(this.view);
  }

  /** Underline the word at a place, with a message. */
  mark(from: number, message: string): void {
    const text = this.text;
    const word = /^(\w+|"[^"]*"|'[^']*'|\S)/.exec(text.slice(from))?.[0] ?? "";
    const to = Math.min(text.length, from + Math.max(1, word.length));
    const diagnostic = { from: Math.min(from, Math.max(0, to - 1)), to, severity: "error" as const, message };
    this.view.dispatch(setDiagnostics(this.view.state, [diagnostic]));
    this.view.dispatch({ effects: EditorView.scrollIntoView(diagnostic.from, { y: "nearest" }) });
  }

  unmark(): void {
    this.view.dispatch(setDiagnostics(this.view.state, []));
  }

  focus(): void {
    this.view.focus();
  }

  destroy(): void {
    this.view.destroy();
  }
}

function makeKeys(callbacks: EditorCallbacks) {
  const call = (work: () => void) => () => {
    work();
    return true;
  };
  return [
    { key: "Mod-Enter", run: call(callbacks.onRun) },
    { key: "Mod-Shift-Enter", run: call(callbacks.onRunAll) },
    { key: "Mod-e", run: call(callbacks.onExplain) },
    { key: "Mod-Shift-f", run: call(callbacks.onFormat) },
    { key: "Mod-s", run: call(callbacks.onSave) },
    { key: "Escape", run: callbacks.onCancel },
  ];
}

function makeLanguage(schema: Schema | null): Extension {
  if (!schema) return sqlLanguage({ dialect: PostgreSQL });
  const names: Record<string, Record<string, Completion[]>> = {};
  for (const table of schema.tables) {
    const columns = table.columns.map((column) => ({
      label: column.name,
      type: "property",
      detail: column.type,
      boost: 2,
    }));
    (names[table.schema] ??= {})[table.name] = columns;
  }
  const functions = schema.functions.map((label) => ({ label, type: "function", apply: `${label}(`, boost: -2 }));
  const language = sqlLanguage({ dialect: PostgreSQL, schema: names as SQLNamespace, defaultSchema: "public" });
  const columnsOf = new Map(schema.tables.map((table) => [table.name, names[table.schema]![table.name]!]));
  return [
    language,
    PostgreSQL.language.data.of({
      autocomplete: (context: CompletionContext) => {
        const word = context.matchBefore(/[A-Za-z_]\w*/);
        if (!word || context.state.sliceDoc(word.from - 1, word.from) === ".") return null;
        return {
          from: word.from,
          options: [...functions, ...columnsInUse(context.state.doc.toString(), columnsOf)],
          validFor: /^[A-Za-z_]\w*$/,
        };
      },
    }),
  ];
}

/** Return the columns of tables that the text names, so that they complete without their table. */
function columnsInUse(text: string, columnsOf: Map<string, Completion[]>): Completion[] {
  const found = new Map<string, Completion>();
  for (const word of new Set(text.match(/\w+/g))) {
    for (const column of columnsOf.get(word) ?? []) found.set(column.label, column);
  }
  return [...found.values()];
}
