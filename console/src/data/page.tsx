export function DataPage() { return <p>…</p>; }
