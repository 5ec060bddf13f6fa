/** The command palette: pages, tables, databases and actions by name. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Dialog } from "../parts/dialog";
import { useStore } from "../parts/store";
import { schema } from "../sql/schema";
import { type Command, commands, isHelpOpen, isPaletteOpen, scoreMatch } from "./commands";
import { database, databases } from "./database";
import { formatRoute, go } from "./router";

const SHOWN_MAX = 50;

function listAll(): Command[] {
  const tables = (schema.value?.tables ?? []).map((table) => ({
    id: `table:${table.schema}.${table.name}`,
    group: "Table",
    title: table.schema === "public" ? table.name : `${table.schema}.${table.name}`,
    run: () => go(formatRoute("data", [table.schema, table.name])),
  }));
  const others = databases.value
    .filter((name) => name !== database.value)
    .map((name) => ({
      id: `database:${name}`,
      group: "Database",
      title: `Use ${name}`,
      run: () => database.set(name),
    }));
  return [...commands.value, ...others, ...tables];
}

/** Return the commands that fit what was typed, the best first. */
function findCommands(typed: string): Command[] {
  const scored = listAll().map((command) => ({ command, score: scoreMatch(typed, command.title) }));
  return scored
    .filter((one) => one.score > 0)
    .sort((a, b) => b.score - a.score)
    .slice(0, SHOWN_MAX)
    .map((one) => one.command);
}

export function Palette() {
  return useStore(isPaletteOpen) ? <PaletteDialog /> : null;
}

function PaletteDialog() {
  const [typed, setTyped] = useState("");
  const [chosen, setChosen] = useState(0);
  const list = useRef<HTMLUListElement>(null);
  const found = useMemo(() => findCommands(typed), [typed]);
  useEffect(() => {
    list.current?.children[chosen]?.scrollIntoView({ block: "nearest" });
  }, [chosen]);
  const close = () => isPaletteOpen.set(false);
  const run = (command: Command | undefined) => {
    close();
    if (command) window.setTimeout(command.run);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setChosen((at) => (found.length ? (at + step + found.length) % found.length : 0));
    } else if (event.key === "Enter") {
      event.preventDefault();
      run(found[chosen]);
    }
  };
  return (
    <Dialog title="" label="Command palette" onClose={close}>
      <div class="palette" onKeyDown={onKeyDown}>
        <input
          class="palette-input"
          role="combobox"
          aria-expanded="true"
          aria-controls="palette-list"
          aria-label="Search commands"
          aria-activedescendant={found[chosen] ? `palette-${chosen}` : undefined}
          placeholder="Go to a page, a table, or do something"
          value={typed}
          autofocus
          spellcheck={false}
          autocomplete="off"
          onInput={(event) => {
            setTyped(event.currentTarget.value);
            setChosen(0);
          }}
        />
        <ul id="palette-list" role="listbox" aria-label="Commands" class="palette-list" ref={list}>
          {found.map((command, index) => (
            <li
              key={command.id}
              id={`palette-${index}`}
              role="option"
              aria-selected={index === chosen}
              onMouseMove={() => setChosen(index)}
              onClick={() => run(command)}
            >
              <span class="palette-title">{command.title}</span>
              {command.keys && <kbd>{command.keys}</kbd>}
              <span class="faint">{command.group}</span>
            </li>
          ))}
        </ul>
        {found.length === 0 && <p class="faint palette-none">Nothing is called that.</p>}
      </div>
    </Dialog>
  );
}

const SHORTCUTS: [string, string][] = [
  ["Ctrl K", "Command palette"],
  ["?", "This list"],
  ["Ctrl Enter", "Run the selection, or the statement at the cursor"],
  ["Ctrl Shift Enter", "Run everything as one transaction"],
  ["Escape", "Cancel what runs (in the editor)"],
  ["Ctrl Space", "Complete"],
  ["Ctrl Shift F", "Format"],
  ["Ctrl E", "Explain"],
  ["Ctrl S", "Save the query"],
  ["Arrow keys", "Move in the grid"],
  ["Enter", "Look at a value, or edit it in Data"],
  ["Ctrl C", "Copy the cell"],
  ["g then q, d, o, c", "Go to Query, Data, Overview, Connect"],
];

export function Help() {
  if (!useStore(isHelpOpen)) return null;
  return (
    <Dialog title="Keyboard" onClose={() => isHelpOpen.set(false)}>
      <dl class="shortcuts">
        {SHORTCUTS.map(([keys, what]) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
