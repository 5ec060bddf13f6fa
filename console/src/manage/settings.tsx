export function SettingsPage() { return <p>…</p>; }
