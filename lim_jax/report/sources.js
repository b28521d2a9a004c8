"use strict";
const MOST = 5;
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const data = JSON.parse(document.getElementById("data").textContent);
const steps = Int8Array.from(atob(data.steps), (letter) => letter.charCodeAt(0));
const tokens = all(".t"), parts = all(".part"), picks = all(".pick"), rows = all(".pick.row");
const whole = document.getElementById("whole") ?? rows[0];
const [most, status] = ["most", "status"].map((id) => document.getElementById(id));

const rowsOf = (pick) => pick.dataset.rows.split(" ").map(Number);
const sum = (values) => values.reduce((one, other) => one + other, 0);
const digits = (value) => Number(value.toPrecision(2)).toString();
/* A score with its sign, or a share in per cent. */
const written = (value) =>
  data.signed ? (value < 0 ? "−" : "+") + digits(Math.abs(value)) : digits(100 * value) + " %";
/* What an element says, in its own direction. */
const said = (element) => {
  const letters = [...element.textContent.trim().replace(/\s+/g, " ")];
  const quoted = document.createElement("bdi");
  quoted.textContent = letters.length > 160 ? letters.slice(0, 159).join("") + "…" : letters.join("");
  return ["“", quoted, "”"];
};

/* What parts of the answer came from, by token and by part of a document. */
const byToken = (chosen) =>
  tokens.map((_, at) => sum(chosen.map((row) => data.scales[row] * steps[row * tokens.length + at])));
const byPart = (chosen) =>
  parts.map((_, at) => sum(chosen.map((row) => data.parts[row][at])));

/* The error of a sum of scores: the size of its change; else as if they had nothing in common.
   Nothing where they have no errors. */
const errorOf = (chosen, columns) => {
  const errors = data.changes ?? data.errors;
  if (!errors) return "";
  const summed = chosen.flatMap((row) => columns.map((at) => errors[row][at]));
  const error = data.changes ? Math.abs(sum(summed)) : Math.hypot(...summed);
  return ` ± ${digits(error)}`;
};

/* In five steps of each sign, the same on all pages: a step for each edge that a value reaches. */
function shade(elements, values) {
  elements.forEach((element, at) => {
    const level = data.edges.filter((edge) => edge <= Math.abs(values[at])).length;
    if (level) element.dataset.shade = Math.sign(values[at]) * level;
    else delete element.dataset.shade;
  });
}

/* The elements that gave most, each a button that leads to it; text only, never markup. A title is
   none of them. Who walks through the list stays where they are in it. */
function list(elements, values) {
  const at = all("button", most).indexOf(document.activeElement);
  const order = values.map((_, at) => at)
    .filter((at) => values[at] !== 0 && !elements[at].matches(".title"));
  order.sort((one, other) => Math.abs(values[other]) - Math.abs(values[one]));
  most.replaceChildren(...order.slice(0, MOST).map((at) => {
    const entry = document.createElement("li"), button = document.createElement("button");
    const score = document.createElement("b");
    score.textContent = written(values[at]);
    score.dataset.shade = values[at] < 0 ? -2 : 2;
    button.append(score, " ", ...said(elements[at]));
    button.addEventListener("click", () => {
      focusOn(elements[at]);
      elements[at].scrollIntoView({ block: "center" });
    });
    entry.append(button);
    return entry;
  }));
  if (at >= 0) (all("button", most)[at] ?? whole).focus();
}

function press(element) {
  for (const one of [...picks, ...parts]) one.setAttribute("aria-pressed", one === element);
}

/* A part of the answer: the documents are shaded by what it came from. */
function choose(pick) {
  const chosen = rowsOf(pick), values = byPart(chosen);
  press(pick);
  shade(tokens, byToken(chosen));
  shade(picks, picks.map(() => 0));
  for (const document of all(".document")) {
    const columns = all(".part", document).map((part) => parts.indexOf(part));
    const score = sum(columns.map((at) => values[at]));
    document.querySelector(".gave").textContent = written(score) + errorOf(chosen, columns);
  }
  const of = pick === whole ? ["the whole answer"] : said(rows.find((row) => row === pick) ?? {
    textContent: chosen.map((row) => rows[row].textContent).join(""),
  });
  status.replaceChildren("What ", ...of, " came from; the parts that gave most:");
  list(parts, values);
}

/* A part of a document: the answer is shaded by what it fed. */
function feed(part) {
  const at = parts.indexOf(part), fed = (pick) => sum(rowsOf(pick).map((row) => data.parts[row][at]));
  const sentences = all(".handle:not(#whole)"), values = rows.map(fed);
  press(part);
  shade(tokens, tokens.map(() => 0));
  shade(rows, values);
  shade(sentences, sentences.map(fed));
  for (const gave of all(".gave")) gave.textContent = "";
  const total = written(sum(data.parts.map((row) => row[at])));
  const rest = ` gave, ${total} in all; the parts of the answer it fed most:`;
  status.replaceChildren("What ", ...said(part), rest);
  list(rows, values);
}

/* Tab goes to the answer and to each document, arrows through its parts. */
const groupOf = (element) => all("[role=button]", element.closest("#answer, .document"));
function focusOn(element) {
  for (const one of groupOf(element)) one.tabIndex = one === element ? 0 : -1;
  element.focus();
}

/* A part of the answer or of a document, as it was clicked or was before printing. */
const take = (element) => (element.matches(".pick") ? choose : feed)(element);

document.addEventListener("click", (event) => {
  const clicked = event.target.closest(".pick, .part");
  if (!clicked) return;
  focusOn(clicked);
  take(clicked);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") choose(whole);
  const here = event.target.closest("[role=button]");
  if (!here) return;
  const group = groupOf(here), at = group.indexOf(here);
  const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1 };
  const to = { Home: 0, End: group.length - 1, ...next }[event.key];
  if (event.key === "Enter" || event.key === " ") here.click();
  else if (group[to]) focusOn(group[to]);
  else return;
  event.preventDefault();
});
/* On paper stands the whole answer; afterwards what was chosen before. */
let before = whole;
matchMedia("print").addEventListener("change", (event) => {
  if (event.matches) before = document.querySelector("[aria-pressed=true]");
  take(event.matches ? whole : before);
});
whole.tabIndex = 0;
choose(whole);
