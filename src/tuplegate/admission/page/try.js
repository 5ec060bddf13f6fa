// Requests from the page to its own address, and the same as a line for curl. The key stays in its field.

const SHOWN_MAX = 200_000;
const base = new URL(".", location.href);
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// What the form holds: the address, the headers and the body of the request.
function filled(path, method, operation, inputs, body) {
  const url = new URL(path.replace(/^\//, "").replace(/{(\w+)}/g, (_, name) => {
    const value = inputs.get(name).value;
    return value ? encodeURIComponent(value) : name.toUpperCase();
  }), base);
  const headers = {};
  for (const one of operation.parameters || []) {
    const value = inputs.get(one.name).value;
    if (value && one.in === "query") url.searchParams.set(one.name, value);
    if (value && one.in === "header") headers[one.name] = value;
  }
  if (body && body.area.value) headers["Content-Type"] = body.media;
  return { url, headers, text: body ? body.area.value : "" };
}

function curl(method, operation, asked) {
  const plain = method === "get" || (asked.text && method === "post");
  const lines = [`curl ${plain ? "" : `-X ${method.toUpperCase()} `}${quoted(asked.url.href)}`];
  if ((operation.security || []).length) lines.push('-H "Authorization: Bearer $TUPLEGATE_API_KEY"');
  for (const [name, value] of Object.entries(asked.headers)) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (asked.text) lines.push(`-d ${quoted(asked.text)}`);
  return lines.join(" \\\n  ");
}

// Rows of an answer as a table, as many as one can look at.
function rowsOf(answer) {
  if (!Array.isArray(answer.rows) || !answer.rows.length) return "";
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const head = make("tr", "", ...answer.columns.map((name) => make("th", "", name)));
  const body = answer.rows.slice(0, 100).map((one) =>
    make("tr", "", ...answer.columns.map((name, place) => make("td", "", text(Array.isArray(one) ? one[place] : one[name])))));
  return make("div", "scroll", make("table", "rows", head, ...body));
}

async function show(answer, began, result) {
  const status = make("span", answer.ok ? "good" : "bad", `${answer.status} ${answer.statusText}`);
  const facts = make("span", "quiet");
  const pre = make("pre");
  result.replaceChildren(make("p", "", status, facts), pre);
  const tell = () => (facts.textContent = ` · ${Math.round(performance.now() - began)} ms · ${answer.headers.get("content-type") || "no body"}`);
  tell();
  if (!answer.body) return pre.remove();
  // As it comes, so that a stream is seen growing.
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    text += part.value;
    pre.textContent = text.slice(0, SHOWN_MAX);
    tell();
    if (text.length > SHOWN_MAX) {
      await reader.cancel();
      pre.textContent += "\n… and more, which is not shown here.";
      return;
    }
  }
  if (!(answer.headers.get("content-type") || "").startsWith("application/json")) return;
  // A number that this language would round is shown with the digits that it was sent with.
  const parsed = JSON.parse(text, (_, value, context) =>
    typeof value === "number" && context && String(value) !== context.source ? context.source : value);
  if (parsed.success === false) status.className = "bad";
  // For the same reason only the white space is new.
  if (text.length < SHOWN_MAX) pre.textContent = indented(text);
  pre.before(rowsOf(parsed));
}

// JSON with line breaks; what is in strings is left alone.
function indented(text) {
  let depth = 0;
  const line = () => "\n" + "  ".repeat(depth);
  return text.replace(/"(?:[^"\\]|\\.)*"|[[{]\s*[\]}]|[[\]{},:]|\s+/g, (part) => {
    if (part[0] === '"' || part.length > 1 && !/^\s/.test(part)) return part;
    if (part === "{" || part === "[") return depth++, part + line();
    if (part === "}" || part === "]") return depth--, line() + part;
    if (part === ",") return part + line();
    return part === ":" ? ": " : "";
  });
}

function question(inputs, one) {
  const input = make("input");
  input.id = `in-${inputs.prefix}-${one.name}`;
  input.autocomplete = "off";
  input.placeholder = one.required ? kind(one.schema) : `${kind(one.schema)}, optional`;
  input.required = Boolean(one.required);
  inputs.set(one.name, input);
  const label = make("label", "", make("code", "", one.name));
  label.htmlFor = input.id;
  return [label, input];
}

// The form of an operation: its parameters, its body, the line for curl, a button, and what came of it.
function tryIt(operation, path, method) {
  const inputs = new Map();
  inputs.prefix = operation.operationId;
  const needed = (operation.parameters || []).filter((one) => one.in === "path");
  const others = (operation.parameters || []).filter((one) => one.in !== "path");
  const form = make("form", "");
  if (needed.length) form.append(make("div", "ask", ...needed.flatMap((one) => question(inputs, one))));
  const content = Object.entries(operation.requestBody?.content || {})[0];
  let body = null;
  if (content) {
    const [media, { example = "" }] = content;
    const area = make("textarea");
    area.value = typeof example === "string" ? example : JSON.stringify(example, null, 2);
    area.rows = area.value.split("\n").length + 1;
    area.spellcheck = false;
    area.setAttribute("aria-label", `Body, ${media}`);
    body = { area, media };
    form.append(area);
  }
  if (others.length) form.append(more("Parameters and headers", make("div", "ask", ...others.flatMap((one) => question(inputs, one)))));
  const send = make("button", "send", "Send");
  const line = copyable();
  const result = make("div", "");
  result.setAttribute("aria-live", "polite");
  form.append(make("div", "buttons", send), result, line.whole);
  const update = () => line.show(curl(method, operation, filled(path, method, operation, inputs, body)));
  form.addEventListener("input", update);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const destroys = method === "delete" || path === "/admin/reset";
    if (destroys && !confirm(`${method.toUpperCase()} ${path}: really?`)) return;
    const asked = filled(path, method, operation, inputs, body);
    const token = at("token").value.trim();
    if (token && operation.security?.length) asked.headers.Authorization = `Bearer ${token}`;
    send.disabled = true;
    try {
      const began = performance.now();
      await show(await fetch(asked.url, { method: method.toUpperCase(), headers: asked.headers, body: asked.text || undefined }), began, result);
    } catch (failure) {
      result.append(make("p", "bad", String(failure)));
    } finally {
      send.disabled = false;
    }
  });
  update();
  return form;
}
