"use strict";
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const fields = read("fields");
const records = read("records");
const card = document.getElementById("card");

/* One card for all tokens: it is filled with text, never with markup, and put beside the token. */
function show(token) {
  const record = records[token.parentElement.dataset.context][token.dataset.at];
  const told = (name) => record[fields.indexOf(name)];
  for (const place of card.querySelectorAll("[data-field]")) {
    place.textContent = told(place.dataset.field);
  }
  for (const bar of card.querySelectorAll("[data-share]")) {
    bar.style.width = told(bar.dataset.share) + "%";
  }
  card.hidden = false;
  token.setAttribute("aria-describedby", "card");
  const [line] = token.getClientRects();
  const below = line.bottom + 6;
  const fits = below + card.offsetHeight <= innerHeight;
  card.style.top = scrollY + Math.max(4, fits ? below : line.top - card.offsetHeight - 6) + "px";
  card.style.left = Math.max(4, Math.min(line.left, innerWidth - card.offsetWidth - 8)) + "px";
}

function hide() {
  card.hidden = true;
  document.querySelector("[aria-describedby=card]")?.removeAttribute("aria-describedby");
}

/* Tab goes to a text, arrows go through its tokens. */
function walk(event) {
  const tokens = [...event.target.parentElement.querySelectorAll(".token")];
  const at = tokens.indexOf(event.target);
  const steps = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tokens.length - 1 };
  const next = tokens[steps[event.key]];
  if (event.key === "Escape") hide();
  if (!next) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

for (const text of document.querySelectorAll(".tokens")) {
  const on = (kind, act) =>
    text.addEventListener(kind, (event) => event.target.matches(".token") && act(event));
  on("mouseover", (event) => { hide(); show(event.target); });
  on("focusin", (event) => { hide(); show(event.target); });
  on("mouseout", hide);
  on("focusout", hide);
  on("keydown", walk);
}

const options = { renderer: "svg", actions: false, ast: true, tooltip: { theme: "page" } };
for (const [id, chart] of Object.entries(read("charts"))) vegaEmbed("#" + id, chart, options);
