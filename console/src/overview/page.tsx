export function OverviewPage() { return <p>…</p>; }
