export function SessionsPage() { return <p>…</p>; }
