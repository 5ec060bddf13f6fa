/** A button with a list of things to do. */
import { useEffect, useRef, useState } from "preact/hooks";

export interface MenuItem {
  title: string;
  isOff?: boolean;
  isDangerous?: boolean;
  run: () => void;
}

export function Menu({ label, items, isQuiet }: { label: string; items: MenuItem[]; isQuiet?: boolean }) {
  const [isOpen, setOpen] = useState(false);
  const element = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (!isOpen) return undefined;
    element.current?.querySelector<HTMLElement>("[role=menuitem]:not(:disabled)")?.focus();
    const close = (event: Event) => {
      if (!event.composedPath().includes(element.current!)) setOpen(false);
    };
    window.addEventListener("pointerdown", close);
    return () => window.removeEventListener("pointerdown", close);
  }, [isOpen]);
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape" && isOpen) {
      event.stopPropagation();
      setOpen(false);
      button.current?.focus();
    } else if (step && isOpen) {
      event.preventDefault();
      const all = [...element.current!.querySelectorAll<HTMLElement>("[role=menuitem]:not(:disabled)")];
      const at = all.indexOf(document.activeElement as HTMLElement);
      all[(at + step + all.length) % all.length]?.focus();
    }
  };
  return (
    <div class="menu" ref={element} onKeyDown={onKeyDown}>
      <button type="button" class={isQuiet ? "small quiet" : "small"} aria-haspopup="menu" aria-expanded={isOpen} ref={button} onClick={() => setOpen(!isOpen)}>
        {label} <span aria-hidden="true">▾</span>
      </button>
      {isOpen && (
        <div class="menu-list" role="menu" aria-label={label}>
          {items.map((item) => (
            <button
              key={item.title} type="button" role="menuitem" class={item.isDangerous ? "dangerous" : ""} disabled={item.isOff ?? false}
              onClick={() => { setOpen(false); button.current?.focus(); item.run(); }}
            >
              {item.title}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}
