/** The session of this page. The token is in memory and in sessionStorage; a key is never kept.
 *
 * A page works with one organization from its start to its end: signing out, and a session of another organization, load
 * it anew. So nothing that was shown or typed for the one can reach the other.
 *
 * http.ts reads the token from here and is imported here: neither may use the other while it is loaded.
 */
import { Store } from "../parts/store";
import { askControl } from "./http";
import type { Scope, SessionRecord } from "./types";

const KEPT = "tuplegate.session";
/** The organization that this browser was signed in to last. */
const LAST = "tuplegate.organization";
const END_MS = 5_000;
const END_TRIES = 2;
/** A session is extended when less than this part of its life is left and it is in use. */
const REFRESH_PART = 0.5;
/** How often that is looked at. */
const LOOK_MS = 1_000;
/** The page is in use if something was typed or clicked within this time. */
const IN_USE_MS = 15 * 60_000;

export type Ended = "signed-out" | "expired" | null;

export interface Opened {
  token: string;
  session: SessionRecord;
}

class OwnSession {
  readonly current = new Store<SessionRecord | null>(null);
  /** Why there is no session now; null before the first. */
  readonly ended = new Store<Ended>(null);
  #token: string | null = null;
  #organization: string | null = null;
  #isLeaving = false;
  #usedAt = 0;
  #life = 0;
  #isRefreshing = false;
  #others = "BroadcastChannel" in window ? new BroadcastChannel("tuplegate.session") : null;

  constructor() {
    this.#others?.addEventListener("message", (event: MessageEvent<{ ended: string }>) => {
      if (event.data.ended === this.current.value?.id) this.#forget("expired");
    });
    // Everything unsent is kept in the tab then: there is nothing to ask.
    const isAsked = (event: Event) => this.#isLeaving && event.stopImmediatePropagation();
    window.addEventListener("beforeunload", isAsked, { capture: true });
    for (const kind of ["pointerdown", "keydown"]) {
      window.addEventListener(kind, () => this.touch(), { passive: true, capture: true });
    }
    window.setInterval(() => this.#look(), LOOK_MS);
  }

  get token(): string | null {
    return this.#token;
  }

  /** The organization that the page works with, also after its session has ended; null before the first. */
  get organization(): string | null {
    return this.#organization;
  }

  /** Take up the session that this tab had before it was loaded again. */
  restore(): void {
    const text = sessionStorage.getItem(KEPT);
    if (!text) return;
    try {
      const kept = JSON.parse(text) as Opened;
      if (new Date(kept.session.expires_at).getTime() > Date.now()) void this.take(kept);
      else sessionStorage.removeItem(KEPT);
    } catch {
      sessionStorage.removeItem(KEPT);
    }
  }

  async openWithKey(key: string): Promise<void> {
    const opened = await askControl<Opened>("/v1/session", { method: "POST", body: { api_key: key }, token: null });
    await this.take(opened);
  }

  /** Exchange a code for a session, which is not taken up yet. */
  exchangeCode(code: string): Promise<Opened> {
    return askControl<Opened>("/v1/console/sessions", { method: "POST", body: { code }, token: null });
  }

  /** Sign out, and load the page anew: nothing of what it showed stays in memory. */
  async signOut(): Promise<void> {
    const token = this.#token;
    const own = this.current.value;
    this.#forget("signed-out");
    if (own) this.#others?.postMessage({ ended: own.id });
    const isEnded = !token || (await endSession(token));
    const until = own ? new Date(own.expires_at).toLocaleTimeString() : "";
    this.#loadAnew(
      isEnded
        ? "You are signed out."
        : `You are signed out here, but the service was not told: the session goes on until ${until}. The page Sessions can end it.`,
    );
  }

  #loadAnew(told: string | null): void {
    this.#isLeaving = true;
    // The address may hold a query, or values of a filter.
    history.replaceState(told ? { told } : null, "", location.hash.replace(/\?.*/s, ""));
    location.reload();
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

  /** Take up a session. One of another organization than the page has worked with loads it anew, and never returns. */
  async take(opened: Opened): Promise<void> {
    const { organization } = opened.session;
    if (this.#organization !== null && this.#organization !== organization) {
      sessionStorage.setItem(KEPT, JSON.stringify(opened));
      this.#loadAnew(null);
      return new Promise(() => undefined);
    }
    this.#organization = organization;
    keepLast(organization);
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

/** End a session in the service; return whether it has ended. */
export async function endSession(token: string): Promise<boolean> {
  for (let tries = 0; tries < END_TRIES; tries++) {
    try {
      const signal = AbortSignal.timeout(END_MS);
      await askControl("/v1/session", { method: "DELETE", token, keepalive: true, signal });
      return true;
    } catch (error) {
      if ((error as { status?: number }).status === 401) return true;
    }
  }
  return false;
}

function keepLast(organization: string): void {
  try {
    localStorage.setItem(LAST, organization);
  } catch {
    // Storage is switched off: then there is nothing of the organization before that could be shown either.
  }
}

/** Return the organization that this browser was signed in to last, in any of its tabs. */
export function lastOrganization(): string | null {
  return localStorage.getItem(LAST);
}

/** Return what the page that was here before it was loaded anew wanted to say, once. */
export function takeTold(): string | null {
  const state = history.state as { told?: string } | null;
  history.replaceState(null, "");
  return state?.told ?? null;
}
