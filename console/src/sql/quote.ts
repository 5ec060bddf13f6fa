/** Names and texts as SQL writes them. */

const PLAIN = /^[a-z_][a-z0-9_]*$/;
const RESERVED = new Set(
  (
    "all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create current_catalog current_date " +
    "current_role current_time current_timestamp current_user default deferrable desc distinct do else end except false fetch for foreign from " +
    "grant group having in initially intersect into lateral leading limit localtime localtimestamp not null offset on only or order placing " +
    "primary references returning select session_user some symmetric system_user table then to trailing true union unique user using variadic " +
    "when where window with authorization binary collation concurrently cross current_schema freeze full ilike inner is isnull join left like " +
    "natural notnull outer overlaps right similar tablesample verbose"
  ).split(" "),
);

export function quoteIdentifier(name: string): string {
  return PLAIN.test(name) && !RESERVED.has(name) ? name : `"${name.replaceAll('"', '""')}"`;
}

/** Always with the schema: a name alone may mean a table of the catalog, or of another schema that is searched first. */
export function quoteTable(schema: string, name: string): string {
  return `${quoteIdentifier(schema)}.${quoteIdentifier(name)}`;
}

export function quoteLiteral(text: string): string {
  const quoted = `'${text.replaceAll("'", "''")}'`;
  return text.includes("\\") ? ` E${quoted.replaceAll("\\", "\\\\")}`.trim() : quoted;
}
