// Messages: what a request takes and an answer has, from the document's schemas.

function resolve(spec, thing) {
  if (!thing || !thing.$ref) return thing || {};
  return thing.$ref.slice(2).split("/").reduce((found, key) => found[key], spec);
}

// The schemas of which a message has one.
function alternatives(schema) {
  return schema.oneOf || schema.anyOf || [schema];
}

// A schema in one line, such as `list of Row`, `1 … 10` or `"a" | "b"`.
function kind(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.oneOf || schema.anyOf) return alternatives(schema).map(kind).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${kind(schema.items || {})}`;
  const bounds = "minimum" in schema || "maximum" in schema ? ` ${schema.minimum ?? ""} … ${schema.maximum ?? ""}` : "";
  return (schema.format || schema.type || "any") + bounds;
}

// The fields of a message; messages inside it follow, each once.
function fields(spec, schema, seen = new Set()) {
  const made = document.createDocumentFragment();
  for (const one of alternatives(schema)) {
    const name = one.$ref ? kind(one) : "";
    const found = resolve(spec, one);
    if (!found.properties || seen.has(name)) continue;
    seen.add(name);
    const needed = new Set(found.required || []);
    const rows = Object.entries(found.properties).map(([key, value]) =>
      row(make("code", "", key), make("code", "", kind(value)), needed.has(key) ? "" : make("span", "quiet", " optional"), value.description ? prose(value.description) : ""));
    made.append(make("p", "quiet", name), ...(found.description ? [prose(found.description)] : []), make("table", "fields", ...rows));
    for (const value of Object.values(found.properties)) {
      for (const inner of alternatives(value)) {
        const deeper = inner.items || inner;
        for (const part of alternatives(deeper)) if (part.$ref) made.append(fields(spec, part, seen));
      }
    }
  }
  return made;
}

// What the search looks at: all words of the operation and of the messages that it names.
function words(spec, operation, path, method) {
  const found = [method, path];
  const seen = new Set();
  const walk = (thing) => {
    if (typeof thing === "string") found.push(thing);
    else if (thing && typeof thing === "object") {
      if (thing.$ref) {
        if (!seen.has(thing.$ref)) seen.add(thing.$ref), walk(resolve(spec, thing));
        return;
      }
      for (const [key, value] of Object.entries(thing)) found.push(key), walk(value);
    }
  };
  walk(operation);
  return found.join("\n").toLowerCase();
}
