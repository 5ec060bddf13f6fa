"use strict";
// Elements of the page. Everything that comes from the service is put in as text, never as markup.

const at = (id) => document.getElementById(id);

function make(tag, className, ...parts) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...parts);
  return made;
}

function more(title, ...parts) {
  return make("details", "more", make("summary", "", title), ...parts);
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

function row(first, ...parts) {
  return make("tr", "", make("td", "", first), make("td", "", ...parts));
}

function copyable() {
  const code = make("code");
  const button = make("button", "", "copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "copied";
    setTimeout(() => (button.textContent = "copy"), 1500);
  });
  const whole = make("div", "example", make("pre", "", code), ...(navigator.clipboard ? [button] : []));
  return { whole, show: (text) => (code.textContent = text) };
}
