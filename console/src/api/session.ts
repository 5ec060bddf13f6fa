/** The session of this page. The token is in memory and in sessionStorage; a key is never kept.
 *
 * http.ts reads the token from here and is imported here: neither may use the other while it is loaded.
 */
import { Store } from "../parts/store";
import { askControl } from "./http";
import type { Scope, SessionRecord } from "./types";

const KEPT = "tuplegate.session";
/** A session is extended when less than this part of its life is left and it is in use. */
const REFRESH_PART = 0.5;
/** How often that is looked at. */
const LOOK_MS = 1_000;
/** The page is in use if something was typed or clicked within this time. */
const IN_USE_MS = 15 * 60_000;

export type Ended = "signed-out" | "expired" | null;

interface Kept {
  token: string;
  session: SessionRecord;
}

interface Opened {
  token: string;
  session: SessionRecord;
}

class OwnSession {
  readonly current = new Store<SessionRecord | null>(null);
  /** Why there is no session now; null before the first. */
  readonly ended = new Store<Ended>(null);
  #token: string | null = null;
  #usedAt = 0;
  #life = 0;
  #isRefreshing = false;
  #others = "BroadcastChannel" in window ? new BroadcastChannel("tuplegate.session") : null;

  constructor() {
    this.#others?.addEventListener("message", (event: MessageEvent<{ ended: string }>) => {
      if (event.data.ended === this.current.value?.id) this.#forget("expired");
    });
    for (const kind of ["pointerdown", "keydown"]) {
      window.addEventListener(kind, () => this.touch(), { passive: true, capture: true });
    }
    window.setInterval(() => this.#look(), LOOK_MS);
  }

  get token(): string | null {
    return this.#token;
  }

  /** Take up the session that this tab had before it was loaded again. */
  restore(): void {
    const text = sessionStorage.getItem(KEPT);
    if (!text) return;
    try {
      const kept = JSON.parse(text) as Kept;
      if (new Date(kept.session.expires_at).getTime() > Date.now()) this.#take(kept);
      else sessionStorage.removeItem(KEPT);
    } catch {
      sessionStorage.removeItem(KEPT);
    }
  }

  async openWithKey(key: string): Promise<void> {
    const opened = await askControl<Opened>("/v1/session", { method: "POST", body: { api_key: key }, token: null });
    this.#take(opened);
  }

  async openWithCode(code: string): Promise<void> {
    const opened = await askControl<Opened>("/v1/console/sessions", { method: "POST", body: { code }, token: null });
    this.#take(opened);
  }

  async signOut(): Promise<void> {
    const token = this.#token;
    this.end("signed-out");
    if (!token) return;
    await askControl("/v1/session", { method: "DELETE", token }).catch(() => undefined);
  }

  /** Forget the session, here and in other tabs that use it. What the pages hold stays. */
  end(why: Ended): void {
    const id = this.current.value?.id;
    if (!id) return;
    this.#forget(why);
    this.#others?.postMessage({ ended: id });
  }

  touch(): void {
    this.#usedAt = Date.now();
  }

  allows(scope: Scope): boolean {
    const scopes = this.current.value?.scopes ?? [];
    if (scopes.includes(scope)) return true;
    if (scope === "read") return scopes.includes("write") || scopes.includes("admin");
    return scope === "write" && scopes.includes("admin");
  }

  #take(opened: Opened): void {
    this.#token = opened.token;
    this.#usedAt = Date.now();
    this.#life = new Date(opened.session.expires_at).getTime() - Date.now();
    this.#keep(opened.session);
    this.ended.set(null);
  }

  #keep(session: SessionRecord): void {
    if (this.#token) sessionStorage.setItem(KEPT, JSON.stringify({ token: this.#token, session }));
    this.current.set(session);
  }

  #forget(why: Ended): void {
    this.#token = null;
    sessionStorage.removeItem(KEPT);
    this.ended.set(why);
    this.current.set(null);
  }

  #look(): void {
    const session = this.current.value;
    if (!session || this.#isRefreshing) return;
    const left = new Date(session.expires_at).getTime() - Date.now();
    if (left <= 0) this.end("expired");
    else if (left < this.#life * REFRESH_PART && Date.now() - this.#usedAt < IN_USE_MS) void this.#refresh();
  }

  async #refresh(): Promise<void> {
    this.#isRefreshing = true;
    try {
      const answer = await askControl<{ session: SessionRecord }>("/v1/session/refresh", { method: "POST" });
      this.#keep(answer.session);
    } catch {
      // Without an answer the session goes on until its time is over; a 401 has ended it already.
    } finally {
      this.#isRefreshing = false;
    }
  }
}

export const session = new OwnSession();
