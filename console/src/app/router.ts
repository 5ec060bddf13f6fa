/** Addresses of the pages: what stands behind the hash. */
import { Store } from "../parts/store";

export interface Route {
  page: string;
  parts: string[];
  params: URLSearchParams;
}

export function parseRoute(hash: string): Route {
  const text = hash.replace(/^#\/?/, "");
  const cut = text.indexOf("?");
  const path = cut < 0 ? text : text.slice(0, cut);
  const [page = "", ...parts] = path.split("/").map(decodePart);
  return {
    page: page || "query",
    parts: parts.filter(Boolean),
    params: new URLSearchParams(cut < 0 ? "" : text.slice(cut + 1)),
  };
}

/** Decode a part of an address; one that is malformed stays as it is. */
export function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function formatRoute(page: string, parts: string[] = [], params: Record<string, string> = {}): string {
  const path = [page, ...parts].map(encodeURIComponent).join("/");
  const query = Object.entries(params)
    .map(([name, value]) => `${name}=${encodeURIComponent(value)}`)
    .join("&");
  return `#/${path}${query ? `?${query}` : ""}`;
}

export const route = new Store<Route>(parseRoute(location.hash));

window.addEventListener("hashchange", () => route.set(parseRoute(location.hash)));

export function go(hash: string): void {
  if (location.hash === hash) route.set(parseRoute(hash));
  else location.hash = hash;
}

/** Write the address anew without a step in the browser's history. */
export function replaceAddress(hash: string): void {
  history.replaceState(null, "", hash);
}
