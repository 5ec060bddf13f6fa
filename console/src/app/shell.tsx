/** The frame of all pages: navigation, the chosen database, and what lies over the page. */
import type { ComponentType } from "preact";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { asFailure, getConfig, makeFailure } from "../api/http";
import { session } from "../api/session";
import type { Scope } from "../api/types";
import { Confirmations } from "../parts/confirm";
import { Dialog } from "../parts/dialog";
import { Lazy } from "../parts/lazy";
import { FailureBox, Waiting } from "../parts/states";
import { useStore } from "../parts/store";
import { tell, Toasts } from "../parts/toast";
import { loadSchema } from "../sql/schema";
import { type Command, isHelpOpen, isPaletteOpen, useCommands } from "./commands";
import { database, databases, findDatabases, organization } from "./database";
import { Help, Palette } from "./palette";
import { formatRoute, go, route } from "./router";
import { CodeDialog, KeyForm, Mark, OtherOrganizationDialog, SignIn, signOut } from "./signin";
import { type Theme, theme } from "./theme";

interface PageEntry {
  id: string;
  title: string;
  needs?: Scope;
  group: "Work" | "Manage";
  load: () => Promise<ComponentType>;
}

const PAGES: PageEntry[] = [
  { id: "query", title: "Query", group: "Work", load: async () => (await import("../query/page")).QueryPage },
  { id: "data", title: "Data", group: "Work", load: async () => (await import("../data/page")).DataPage },
  {
    id: "overview",
    title: "Overview",
    group: "Work",
    load: async () => (await import("../overview/page")).OverviewPage,
  },
  { id: "connect", title: "Connect", group: "Work", load: async () => (await import("../connect/page")).ConnectPage },
  {
    id: "databases",
    title: "Databases",
    group: "Manage",
    needs: "admin",
    load: async () => (await import("../manage/databases")).DatabasesPage,
  },
  {
    id: "keys",
    title: "Keys",
    group: "Manage",
    needs: "admin",
    load: async () => (await import("../manage/keys")).KeysPage,
  },
  {
    id: "sessions",
    title: "Sessions",
    group: "Manage",
    load: async () => (await import("../manage/sessions")).SessionsPage,
  },
  {
    id: "organizations",
    title: "Organizations",
    group: "Manage",
    needs: "operator",
    load: async () => (await import("../manage/organizations")).OrganizationsPage,
  },
  {
    id: "audit",
    title: "Audit",
    group: "Manage",
    needs: "admin",
    load: async () => (await import("../manage/audit")).AuditPage,
  },
  {
    id: "settings",
    title: "Settings",
    group: "Manage",
    load: async () => (await import("../manage/settings")).SettingsPage,
  },
];

function listPages(): PageEntry[] {
  return PAGES.filter((page) => !page.needs || session.allows(page.needs));
}

export function Shell({ problem }: { problem: string | null }) {
  const current = useStore(session.current);
  const ended = useStore(session.ended);
  const [wasSignedIn, setSignedIn] = useState(current !== null);
  useEffect(() => {
    if (!current) return;
    setSignedIn(true);
    findDatabases()
      .then(loadSchema)
      .catch((error: unknown) => tell(asFailure(error).message, "failed"));
  }, [current?.id]);
  if (ended === "signed-out") return <Waiting what="Signing out" />;
  if (!current && !wasSignedIn)
    return (
      <>
        <SignIn problem={problem} />
        <OtherOrganizationDialog />
      </>
    );
  return (
    <>
      <Frame />
      <Palette />
      <Help />
      <Confirmations />
      <CodeDialog />
      <OtherOrganizationDialog />
      {!current && ended === "expired" && <SignInAgain />}
      <Toasts />
    </>
  );
}

/** The page below stays as it is, with everything that was typed. */
function SignInAgain() {
  return (
    <Dialog title="Your session has ended" onClose={() => undefined} closable={false}>
      <p>Sign in to go on where you were. Nothing that you typed is lost.</p>
      <KeyForm action="Go on" />
      <button type="button" class="quiet" onClick={() => void session.signOut()}>
        Leave the page instead
      </button>
    </Dialog>
  );
}

function Frame() {
  const at = useStore(route);
  const [isOpen, setOpen] = useState(false);
  useKeys();
  useCommands(makeCommands, [useStore(session.current)?.id]);
  useEffect(() => setOpen(false), [at]);
  const page = listPages().find((one) => one.id === at.page);
  useEffect(() => {
    document.title = `${page?.title ?? "Tuplegate"} · Tuplegate`;
  }, [page]);
  return (
    <div class="frame">
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          document.getElementById("main")?.focus();
        }}
      >
        Skip to the content
      </a>
      <header class="side" data-open={isOpen}>
        <div class="side-top">
          <span class="brand">
            <Mark /> Tuplegate
          </span>
          <button type="button" class="quiet menu-button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
            Menu
          </button>
        </div>
        <div class="side-rest">
          <DatabasePicker />
          <button type="button" class="search-button" onClick={() => isPaletteOpen.set(true)}>
            Search or run <kbd>Ctrl K</kbd>
          </button>
          <Navigation page={at.page} />
          <Account />
        </div>
      </header>
      <main id="main" tabIndex={0} class="main">
        {page ? <Lazy key={page.id} load={page.load} what={page.title} props={{}} /> : <NoPage />}
      </main>
    </div>
  );
}

function NoPage() {
  const failure = makeFailure(
    "no_page",
    "There is no such page, or your key may not see it.",
    "Choose one in the navigation.",
  );
  return (
    <div class="page">
      <FailureBox failure={failure} />
    </div>
  );
}

function Navigation({ page }: { page: string }) {
  return (
    <nav aria-label="Pages">
      {(["Work", "Manage"] as const).map((group) => (
        <div class="nav-group" key={group}>
          <h2 class="nav-title">{group}</h2>
          {listPages()
            .filter((one) => one.group === group)
            .map((one) => (
              <a key={one.id} href={formatRoute(one.id)} aria-current={one.id === page ? "page" : undefined}>
                {one.title}
              </a>
            ))}
        </div>
      ))}
    </nav>
  );
}

function DatabasePicker() {
  const chosen = useStore(database);
  const names = useStore(databases);
  const isBound = !!useStore(session.current)?.database;
  return (
    <label class="field picker">
      <span>Database</span>
      <select
        value={chosen ?? ""}
        disabled={isBound || names.length === 0}
        onChange={(event) => database.set(event.currentTarget.value)}
      >
        {names.map((name) => (
          <option key={name} value={name}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}

function Account() {
  const own = useStore(session.current);
  const chosen = useStore(theme);
  return (
    <div class="account">
      <label class="field inline">
        <span>Theme</span>
        <select value={chosen} onChange={(event) => theme.set(event.currentTarget.value as Theme)}>
          <option value="system">system</option>
          <option value="light">light</option>
          <option value="dark">dark</option>
        </select>
      </label>
      <p class="faint">
        Signed in to <b>{useStore(organization)}</b>
        <br />
        {own?.scopes.join(", ")} · v{getConfig().version}
      </p>
      <button type="button" class="quiet" onClick={signOut}>
        Sign out
      </button>
    </div>
  );
}

function makeCommands(): Command[] {
  const themes = (["system", "light", "dark"] as const).map((name) => ({
    id: `theme:${name}`,
    group: "Theme",
    title: `Theme: ${name}`,
    run: () => theme.set(name),
  }));
  return [
    ...listPages().map((page) => ({
      id: `page:${page.id}`,
      group: "Page",
      title: page.title,
      run: () => go(formatRoute(page.id)),
    })),
    { id: "help", group: "Help", title: "Keyboard shortcuts", keys: "?", run: () => isHelpOpen.set(true) },
    { id: "reload-schema", group: "Action", title: "Load the schema again", run: () => void loadSchema() },
    ...themes,
    { id: "sign-out", group: "Action", title: "Sign out", run: signOut },
  ];
}

const GOES: Record<string, string> = { q: "query", d: "data", o: "overview", c: "connect", k: "keys", b: "databases" };

function useKeys(): void {
  // Before the page is drawn: keys that are pressed as soon as it is seen must not be lost.
  useLayoutEffect(() => {
    let isGoing = false;
    const onKeyDown = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        isPaletteOpen.set(!isPaletteOpen.value);
        return;
      }
      const target = event.composedPath()[0];
      const isTyping =
        target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (event.key === "?") isHelpOpen.set(true);
      const page = isGoing ? GOES[event.key] : undefined;
      if (page) go(formatRoute(page));
      isGoing = event.key === "g";
    };
    window.addEventListener("keydown", onKeyDown);
    return () => window.removeEventListener("keydown", onKeyDown);
  }, []);
}
