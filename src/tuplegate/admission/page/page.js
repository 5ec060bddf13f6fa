// Shows openapi.json of the same address.

function contents(spec, operation, path, method) {
  const made = make("div", "");
  if (operation.description) made.append(prose(operation.description));
  made.append(tryIt(operation, path, method));
  const meanings = (operation.parameters || []).filter((one) => one.description);
  if (meanings.length) {
    const rows = meanings.map((one) =>
      row(make("code", "", one.name), make("span", "quiet", `${one.in}, ${kind(one.schema)}`), prose(one.description)));
    made.append(make("h3", "", "Parameters"), make("table", "fields", ...rows));
  }
  for (const [media, { schema }] of Object.entries(operation.requestBody?.content || {})) {
    made.append(make("h3", "", "Body, ", make("code", "", media)), fields(spec, schema));
  }
  for (const [status, answer] of Object.entries(operation.responses)) {
    const schema = answer.content?.["application/json"]?.schema;
    if (schema && status < 300) made.append(make("h3", "", `Answer, ${status}`), fields(spec, schema));
    for (const [media, { example }] of Object.entries(answer.content || {})) {
      if (example) made.append(make("h3", "", "Or, ", make("code", "", media)), make("pre", "", example));
    }
  }
  const rows = Object.entries(operation.responses).map(([status, answer]) => {
    const medias = Object.keys(answer.content || {}).join(", ");
    const headers = Object.keys(answer.headers || {}).join(", ");
    return row(make("span", status < 400 ? "good" : "bad", status), prose(answer.description),
      make("p", "quiet", [medias, headers].filter(Boolean).join(" · ")));
  });
  made.append(more("All statuses", make("table", "", ...rows)));
  return made;
}

function section(spec, operation, path, method) {
  const summary = make("summary", "", make("span", `method ${method}`, method.toUpperCase()), make("span", "path", path), make("span", "quiet", operation.summary));
  const made = make("details", "operation", summary);
  made.id = operation.operationId;
  made.addEventListener("toggle", () => {
    if (made.childElementCount === 1) made.append(contents(spec, operation, path, method));
  });
  return made;
}

function entry(operation, path, method) {
  const link = make("a", "", make("span", `method ${method}`, method.toUpperCase()), make("span", "path", path));
  link.href = `#${operation.operationId}`;
  return link;
}

function openChosen() {
  const chosen = location.hash && at(location.hash.slice(1));
  if (!chosen) return;
  chosen.open = true;
  chosen.scrollIntoView();
}

function showAll(spec) {
  document.title = spec.info.title;
  at("title").textContent = spec.info.title;
  at("version").textContent = spec.info.version;
  const link = make("a", "", "openapi.json");
  link.href = "openapi.json";
  at("about").append(prose(spec.info.description), make("p", "quiet", "For machines: ", link));
  const groups = new Map((spec.tags || []).map(({ name }) => [name, { name, all: [] }]));
  for (const [path, methods] of Object.entries(spec.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      if (method === "options") continue;
      const made = section(spec, operation, path, method);
      groups.get(operation.tags[0]).all.push({ made, link: entry(operation, path, method), text: words(spec, operation, path, method) });
    }
  }
  for (const group of groups.values()) {
    group.part = make("section", "group", make("h2", "", group.name), ...group.all.map(({ made }) => made));
    group.links = make("div", "", make("h2", "", group.name), ...group.all.map((one) => one.link));
    at("operations").append(group.part);
    at("contents").append(group.links);
  }
  const search = () => {
    const wanted = at("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { part, links, all } of groups.values()) {
      for (const { made, link, text } of all) made.hidden = link.hidden = !wanted.every((word) => text.includes(word));
      part.hidden = links.hidden = all.every(({ made }) => made.hidden);
    }
    at("none").hidden = [...groups.values()].some(({ part }) => !part.hidden);
  };
  at("search").addEventListener("input", search);
  search();
  addEventListener("hashchange", openChosen);
  openChosen();
}

fetch("openapi.json")
  .then((answer) => (answer.ok ? answer.json() : Promise.reject(new Error(`openapi.json answers ${answer.status}`))))
  .then(showAll)
  .catch((failure) => at("about").append(make("p", "bad", String(failure))));
