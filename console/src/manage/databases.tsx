export function DatabasesPage() { return <p>…</p>; }
