/** Commands that the palette lists: pages add theirs while they are shown. */
import { useEffect } from "preact/hooks";
import { Store } from "../parts/store";

export interface Command {
  id: string;
  title: string;
  group: string;
  keys?: string;
  run: () => void;
}

export const commands = new Store<Command[]>([]);
export const isPaletteOpen = new Store(false);
export const isHelpOpen = new Store(false);

/** Offer commands while the component is there; `inputs` say when they change. */
export function useCommands(make: () => Command[], inputs: unknown[]): void {
  useEffect(() => {
    const mine = make();
    const ids = new Set(mine.map((one) => one.id));
    commands.update((all) => [...all.filter((one) => !ids.has(one.id)), ...mine]);
    return () => commands.update((all) => all.filter((one) => !mine.includes(one)));
  }, inputs);
}

/** Return a score for how well a text fits what was typed; 0 where it does not. */
export function scoreMatch(typed: string, text: string): number {
  const wanted = typed.toLowerCase().trim();
  const given = text.toLowerCase();
  if (!wanted) return 1;
  const at = given.indexOf(wanted);
  if (at >= 0) return 1000 - at * 2 - given.length / 100;
  let from = 0;
  let score = 400;
  for (const letter of wanted) {
    const found = given.indexOf(letter, from);
    if (found < 0) return 0;
    score -= found - from;
    from = found + 1;
  }
  return Math.max(score, 1);
}
