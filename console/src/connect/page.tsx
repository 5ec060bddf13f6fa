export function ConnectPage() { return <p>…</p>; }
