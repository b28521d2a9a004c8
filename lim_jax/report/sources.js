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
const signed = (value) =>
  (value < 0 ? "−" : "+") + Number(Math.abs(value).toPrecision(2)).toString();
const said = (element) => {
  const text = element.textContent.trim().replace(/\s+/g, " ");
  return "“" + (text.length > 160 ? text.slice(0, 159) + "…" : text) + "”";
};

/* What parts of the answer came from, by token and by sentence. */
const byToken = (chosen) =>
  tokens.map((_, at) => sum(chosen.map((row) => data.scales[row] * steps[row * tokens.length + at])));
const bySentence = (chosen) =>
  parts.map((_, at) => sum(chosen.map((row) => data.parts[row][at])));

/* In five steps of each sign, up to the largest of the first `count`, which are not the rest. */
function shade(elements, values, count = values.length) {
  const top = Math.max(...values.slice(0, count).map(Math.abs), 0);
  elements.forEach((element, at) => {
    const step = top > 0 ? Math.round((5 * values[at]) / top) : 0;
    const level = Math.max(-5, Math.min(5, step));
    if (level) element.dataset.shade = level;
    else delete element.dataset.shade;
  });
}

/* The elements that gave most, each a button that leads to it; text only, never markup. */
function list(elements, values) {
  const order = values.map((_, at) => at).filter((at) => values[at] !== 0);
  order.sort((one, other) => Math.abs(values[other]) - Math.abs(values[one]));
  most.replaceChildren(...order.slice(0, MOST).map((at) => {
    const entry = document.createElement("li"), button = document.createElement("button");
    const score = document.createElement("b");
    score.textContent = signed(values[at]);
    score.dataset.shade = values[at] < 0 ? -2 : 2;
    button.append(score, " " + said(elements[at]));
    button.addEventListener("click", () => {
      focusOn(elements[at]);
      elements[at].scrollIntoView({ block: "center" });
    });
    entry.append(button);
    return entry;
  }));
}

function press(element) {
  for (const one of [...picks, ...parts]) one.setAttribute("aria-pressed", one === element);
}

/* A part of the answer: the documents are shaded by what it came from. */
function choose(pick) {
  const chosen = rowsOf(pick), values = bySentence(chosen);
  press(pick);
  shade(tokens, byToken(chosen), all(".document .t").length);
  shade(picks, picks.map(() => 0));
  for (const document of all(".document")) {
    const own = all(".part", document).map((part) => values[parts.indexOf(part)]);
    document.querySelector(".gave").textContent = signed(sum(own));
  }
  const of = pick === whole ? "the whole answer" : said(rows.find((row) => row === pick) ?? {
    textContent: chosen.map((row) => rows[row].textContent).join(""),
  });
  status.textContent = `What ${of} came from; the sentences that gave most:`;
  list(parts, values);
}

/* A sentence of a document: the answer is shaded by what it fed. */
function feed(part) {
  const at = parts.indexOf(part), fed = (pick) => sum(rowsOf(pick).map((row) => data.parts[row][at]));
  const sentences = all(".handle:not(#whole)"), values = rows.map(fed);
  press(part);
  shade(tokens, tokens.map(() => 0));
  shade(rows, values);
  shade(sentences, sentences.map(fed));
  for (const gave of all(".gave")) gave.textContent = "";
  const total = signed(sum(data.parts.map((row) => row[at])));
  status.textContent = `What ${said(part)} gave, ${total} in all; the parts of the answer it fed most:`;
  list(rows, values);
}

/* Tab goes to the answer and to each document, arrows through its parts. */
function focusOn(element) {
  const group = element.parentElement;
  for (const one of all("[role=button]", group)) one.tabIndex = one === element ? 0 : -1;
  element.focus();
}

document.addEventListener("click", (event) => {
  const pick = event.target.closest(".pick"), part = event.target.closest(".part");
  if (pick ?? part) focusOn(pick ?? part);
  if (pick) choose(pick);
  else if (part) feed(part);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") choose(whole);
  const here = event.target.closest("[role=button]");
  if (!here) return;
  const group = all("[role=button]", here.parentElement), at = group.indexOf(here);
  const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1 };
  const to = { Home: 0, End: group.length - 1, ...next }[event.key];
  if (event.key === "Enter" || event.key === " ") here.click();
  else if (group[to]) focusOn(group[to]);
  else return;
  event.preventDefault();
});
matchMedia("print").addEventListener("change", (event) => event.matches && choose(whole));
whole.tabIndex = 0;
choose(whole);
