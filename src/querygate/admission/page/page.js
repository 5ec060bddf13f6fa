"use strict";
// Shows openapi.json of the same address. Everything of it is put in as text, never as markup.

const at = (id) => document.getElementById(id);

function make(tag, className, ...parts) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...parts);
  return made;
}

// The few marks that our own texts use: paragraphs, lists, and code in backticks.
function prose(text) {
  const made = document.createDocumentFragment();
  for (const paragraph of text.trim().split(/\n\n+/)) {
    for (const line of paragraph.split(/\n(?=- )/)) {
      const block = make("p");
      line.replace(/^- /, "").split("`").forEach((part, index) => block.append(index % 2 ? make("code", "", part) : part));
      made.append(block);
    }
  }
  return made;
}

function resolve(spec, thing) {
  if (!thing || !thing.$ref) return thing || {};
  return thing.$ref.slice(2).split("/").reduce((found, key) => found[key], spec);
}

// A schema in one line, such as `list of Row`, `1 … 10` or `"a" | "b"`.
function kind(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(kind).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${kind(schema.items || {})}`;
  const bounds = "minimum" in schema || "maximum" in schema ? ` ${schema.minimum ?? ""} … ${schema.maximum ?? ""}` : "";
  return (schema.format || schema.type || "any") + bounds;
}

function row(first, ...parts) {
  return make("tr", "", make("td", "", first), make("td", "", ...parts));
}

// The fields of a message; messages inside it follow, each once.
function fields(spec, schema, seen = new Set()) {
  const made = document.createDocumentFragment();
  for (const one of schema.anyOf || [schema]) {
    const name = one.$ref ? kind(one) : "";
    const found = resolve(spec, one);
    if (!found.properties || seen.has(name)) continue;
    seen.add(name);
    const needed = new Set(found.required || []);
    const rows = Object.entries(found.properties).map(([key, value]) =>
      row(make("code", "", key), make("code", "", kind(value)), needed.has(key) ? "" : make("span", "quiet", " optional")));
    made.append(make("p", "quiet", name), ...(found.description ? [prose(found.description)] : []), make("table", "", ...rows));
    for (const value of Object.values(found.properties)) {
      for (const inner of value.anyOf || [value]) {
        const deeper = inner.items || inner;
        for (const part of deeper.anyOf || [deeper]) if (part.$ref) made.append(fields(spec, part, seen));
      }
    }
  }
  return made;
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function curl(path, method, operation) {
  const url = new URL(path.replace(/^\//, ""), new URL(".", location.href));
  const asked = decodeURI(url.href).replace(/{(\w+)}/g, (_, name) => name.toUpperCase());
  const lines = [`curl ${method === "get" || (operation.requestBody && method === "post") ? "" : `-X ${method.toUpperCase()} `}${quoted(asked)}`];
  if ((operation.security || []).length) lines.push('-H "Authorization: Bearer $QUERYGATE_API_KEY"');
  const body = Object.entries(operation.requestBody?.content || {})[0];
  if (body) {
    const [media, { example = {} }] = body;
    lines.push(`-H 'Content-Type: ${media}'`, `-d ${quoted(typeof example === "string" ? example : JSON.stringify(example))}`);
  }
  return lines.join(" \\\n  ");
}

function copyable(text) {
  const button = make("button", "", "copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
  });
  return make("div", "example", make("pre", "", make("code", "", text)), ...(navigator.clipboard ? [button] : []));
}

function contents(spec, operation, path, method) {
  const made = make("div", "");
  if (operation.description) made.append(prose(operation.description));
  made.append(copyable(curl(path, method, operation)));
  if (operation.parameters) {
    const rows = operation.parameters.map((one) =>
      row(make("code", "", one.name), make("span", "quiet", `${one.in}, ${kind(one.schema)}`), prose(one.description || "")));
    made.append(make("h3", "", "Parameters"), make("table", "", ...rows));
  }
  for (const [media, { schema }] of Object.entries(operation.requestBody?.content || {})) {
    made.append(make("h3", "", "Body, ", make("code", "", media)), fields(spec, schema));
  }
  made.append(make("h3", "", "Answers"));
  const rows = [];
  for (const [status, answer] of Object.entries(operation.responses)) {
    const medias = Object.keys(answer.content || {}).join(", ");
    const headers = Object.keys(answer.headers || {}).join(", ");
    rows.push(row(make("span", status < 400 ? "good" : "bad", status), prose(answer.description),
      make("p", "quiet", [medias, headers].filter(Boolean).join(" · "))));
  }
  made.append(make("table", "", ...rows));
  for (const [status, answer] of Object.entries(operation.responses)) {
    const schema = answer.content?.["application/json"]?.schema;
    if (schema && status < 300) made.append(make("h3", "", `The answer with ${status}`), fields(spec, schema));
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

function show(spec) {
  document.title = spec.info.title;
  at("title").textContent = spec.info.title;
  at("version").textContent = spec.info.version;
  const link = make("a", "", "openapi.json");
  link.href = "openapi.json";
  at("about").append(prose(spec.info.description), make("p", "", "For machines: ", link));
  const all = [];
  for (const [path, methods] of Object.entries(spec.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      if (method === "options") continue;
      const summary = make("summary", "", make("span", "method", method.toUpperCase()), make("span", "path", path), make("span", "quiet", operation.summary));
      const section = make("details", "operation", summary);
      section.id = operation.operationId;
      section.addEventListener("toggle", () => {
        if (section.childElementCount === 1) section.append(contents(spec, operation, path, method));
      });
      at("operations").append(section);
      all.push({ section, text: words(spec, operation, path, method) });
    }
  }
  const search = () => {
    const wanted = at("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { section, text } of all) section.hidden = !wanted.every((word) => text.includes(word));
    at("none").hidden = all.some(({ section }) => !section.hidden);
  };
  at("search").addEventListener("input", search);
  search();
  const chosen = location.hash && at(location.hash.slice(1));
  if (chosen) {
    chosen.open = true;
    chosen.scrollIntoView();
  }
}

fetch("openapi.json")
  .then((answer) => (answer.ok ? answer.json() : Promise.reject(new Error(`openapi.json answers ${answer.status}`))))
  .then(show)
  .catch((failure) => at("about").append(make("p", "bad", String(failure))));
