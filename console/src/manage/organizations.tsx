export function OrganizationsPage() { return <p>…</p>; }
