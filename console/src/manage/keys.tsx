export function KeysPage() { return <p>…</p>; }
