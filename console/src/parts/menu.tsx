/** A button with a list of things to do. The list is in the browser's top layer, so that nothing cuts it off. */
import { useEffect, useRef, useState } from "preact/hooks";

export interface MenuItem {
  title: string;
  isOff?: boolean;
  isDangerous?: boolean;
  run: () => void;
}

const EDGE = 8;

/** Put the list below the button, or above where there is no room, within the window. */
function placeList(list: HTMLElement, button: HTMLElement): void {
  list.showPopover();
  const at = button.getBoundingClientRect();
  const fits = at.bottom + list.offsetHeight + EDGE < window.innerHeight;
  list.style.top = `${fits ? at.bottom + 4 : Math.max(EDGE, at.top - list.offsetHeight - 4)}px`;
  list.style.left = `${Math.max(EDGE, Math.min(at.left, window.innerWidth - list.offsetWidth - EDGE))}px`;
}

/** Move to the item before or behind. */
function moveFocus(event: KeyboardEvent, list: HTMLElement): void {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const all = [...list.querySelectorAll<HTMLElement>("[role=menuitem]:not(:disabled)")];
  const at = all.indexOf(document.activeElement as HTMLElement);
  all[(at + step + all.length) % all.length]?.focus();
}

export function Menu({
  label,
  items,
  size = "small",
}: {
  label: string;
  items: MenuItem[];
  size?: "small" | "normal";
}) {
  const [isOpen, setOpen] = useState(false);
  const element = useRef<HTMLDivElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (!isOpen) return undefined;
    placeList(list.current!, button.current!);
    list.current!.querySelector<HTMLElement>("[role=menuitem]:not(:disabled)")?.focus();
    const close = (event: Event) => {
      if (!event.composedPath().includes(element.current!)) setOpen(false);
    };
    window.addEventListener("pointerdown", close);
    return () => window.removeEventListener("pointerdown", close);
  }, [isOpen]);
  const onKeyDown = (event: KeyboardEvent) => {
    if (!isOpen) return;
    if (event.key === "Escape") {
      event.stopPropagation();
      button.current?.focus();
    }
    if (event.key === "Escape" || event.key === "Tab") setOpen(false);
    else moveFocus(event, list.current!);
  };
  return (
    <div class="menu" ref={element} onKeyDown={onKeyDown}>
      <button
        type="button"
        class={size}
        aria-haspopup="menu"
        aria-expanded={isOpen}
        ref={button}
        onClick={() => setOpen(!isOpen)}
      >
        {label} <span aria-hidden="true">▾</span>
      </button>
      {isOpen && (
        <div class="menu-list" role="menu" aria-label={label} ref={list} popover="manual">
          {items.map((item) => (
            <button
              key={item.title}
              type="button"
              role="menuitem"
              class={item.isDangerous ? "dangerous" : ""}
              disabled={item.isOff ?? false}
              onClick={() => {
                setOpen(false);
                button.current?.focus();
                item.run();
              }}
            >
              {item.title}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}
