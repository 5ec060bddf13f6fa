/** Dark or light: the system's choice unless the reader has chosen. */
import { keepStore } from "../parts/store";

export type Theme = "system" | "light" | "dark";
export const theme = keepStore<Theme>("theme", "system");

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

export function isDark(): boolean {
  return theme.value === "dark" || (theme.value === "system" && prefersDark.matches);
}

function apply(): void {
  document.documentElement.dataset["theme"] = isDark() ? "dark" : "light";
}

export function followTheme(): void {
  apply();
  theme.subscribe(apply);
  prefersDark.addEventListener("change", apply);
}
