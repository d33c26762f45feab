// The questions, and each of them answered in three ways.

import { byId, h, remember, remembered, showState, styled } from "./dom.js";
import { counted, duration, number } from "./format.js";
import { waterfall } from "./waterfall.js";

const verdict = byId("verdict");
const run = byId("run");
let questions = [];
let cards = new Map(); // by the way's id

export async function loadQuestions() {
  const state = byId("questions-state");
  try {
    const response = await fetch("questions");
    if (!response.ok) throw new Error(`status ${response.status}`);
    const found = await response.json();
    questions = found.questions;
    state.hidden = true;
    const chosen = questions.find(({ id }) => id === remembered("question")) ?? questions[0];
    byId("questions").append(...questions.map((question) => h("label", {},
      h("input", { type: "radio", name: "question", value: question.id, checked: question === chosen }), h("span", {}, question.title))));
    cards = new Map(found.ways.map((way) => [way.id, new Card(way)]));
    byId("ways").replaceChildren(...[...cards.values()].map((card) => card.element));
    byId("to-graphiql").hidden = !found.graphiql;
    byId("open").hidden = !found.graphiql;
    byId("questions").addEventListener("change", show);
    byId("ask").addEventListener("submit", (event) => { event.preventDefault(); compare(); });
    run.disabled = false;
    show();
  } catch (error) {
    showState(state, "bad", `The questions could not be loaded: ${error.message}. Reload the page to try again.`);
  }
}

const chosenOne = () => questions.find(({ id }) => id === new FormData(byId("ask")).get("question"));

function show() {
  const question = chosenOne();
  remember("question", question.id);
  byId("query").textContent = question.query;
  const variables = JSON.stringify({ first: question.first });
  byId("open").href = `graphql?q=${encodeURIComponent(question.query)}&variables=${encodeURIComponent(variables)}`;
}

async function compare() {
  if (run.getAttribute("aria-disabled") === "true") return;
  run.setAttribute("aria-disabled", "true"); // "disabled" would lose the focus
  for (const card of cards.values()) card.wait();
  showState(verdict, "running", "Running: one way after the other, so that their times can be compared.");
  try {
    for await (const event of events(`questions/${chosenOne().id}`)) {
      if (event.error) throw new Error(event.error);
      if (event.way) cards.get(event.way).receive(event);
      else showVerdict(event);
    }
    if (verdict.dataset.state === "running") throw new Error("the server ended the comparison before it was done");
  } catch (error) {
    for (const card of cards.values()) card.giveUp();
    showState(verdict, "bad", `Not compared: ${error.message}`);
  } finally {
    run.removeAttribute("aria-disabled");
    run.textContent = "Run it again";
  }
}

/** The events of a comparison: a line of JSON each, as they come. */
async function* events(url) {
  const response = await fetch(url, { method: "POST" });
  if (!response.ok) throw new Error((await response.json().catch(() => null))?.error ?? `status ${response.status}`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
    const lines = (text + value).split("\n");
    text = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

function showVerdict({ equal, values }) {
  const all = [...cards.values()];
  const most = { statements: Math.max(...all.map(({ took }) => took.statements)), seconds: Math.max(...all.map(({ took }) => took.seconds)) };
  for (const card of all) card.compareWith(most);
  byId("legend").hidden = false;
  const [first, last] = [all[0], all.at(-1)].map(({ took }) => number(took.statements));
  if (equal) showState(verdict, "equal", `The three answers are equal, ${counted(values, "value")} compared: ${first} statements, or ${last}.`);
  else if (equal === null) showState(verdict, "bad", "The answers cannot be compared: not every way came to an end.");
  else showState(verdict, "bad", "The answers differ. They should not: did somebody change the data meanwhile?");
}

class Card {
  constructor({ id, title, note }) {
    this.statements = h("dd", {}, "–");
    this.seconds = h("dd", {}, "–");
    this.bars = { statements: h("i"), seconds: h("i") };
    this.more = h("div", { class: "more" }, h("p", { class: "quiet" }, "Not run yet."));
    this.element = h("article", { class: "way", "data-way": id, "data-state": "none", "aria-labelledby": `way-${id}` },
      h("h3", { id: `way-${id}` }, title), h("p", { class: "quiet" }, note),
      h("dl", { class: "figures" },
        h("div", {}, h("dt", {}, "SQL statements"), this.statements, h("span", { class: "share", "aria-hidden": "true" }, this.bars.statements)),
        h("div", {}, h("dt", {}, "Time"), this.seconds, h("span", { class: "share", "aria-hidden": "true" }, this.bars.seconds))),
      this.more);
  }

  wait() {
    this.took = null;
    this.element.dataset.state = "waits";
    this.statements.textContent = this.seconds.textContent = "–";
    for (const bar of Object.values(this.bars)) styled(bar, { width: "0" });
    this.more.replaceChildren(h("p", { class: "quiet" }, "Waits for its turn."));
  }

  giveUp() {
    if (this.took) return;
    this.element.dataset.state = "none";
    this.more.replaceChildren(h("p", { class: "quiet" }, "Not run to its end."));
  }

  receive(event) {
    this.statements.textContent = number(event.statements);
    if (!event.done) {
      if (this.element.dataset.state === "runs") return;
      this.element.dataset.state = "runs";
      this.more.replaceChildren(h("p", { class: "quiet" }, "Running…"));
      return;
    }
    this.took = event;
    this.element.dataset.state = event.errors.length > 0 ? "failed" : "done";
    this.seconds.textContent = duration(event.seconds);
    this.more.replaceChildren(
      ...event.errors.map((error) => h("p", { class: "error" }, `Not a whole answer: ${error}.`)),
      waterfall(event.waterfall),
      h("details", {}, h("summary", {}, "The SQL"), h("div", { class: "sql", tabindex: 0, role: "group", "aria-label": "Statements" }, event.sql.map(sql))));
  }

  /** Shows how much it took beside the way that took most. */
  compareWith(most) {
    for (const [name, bar] of Object.entries(this.bars)) styled(bar, { width: `${(100 * this.took[name]) / most[name]}%` });
  }
}

function sql({ text, times }) {
  return h("figure", {}, h("figcaption", {}, `${number(times)} ×`), h("pre", {}, h("code", {}, shortened(text))));
}

/** A statement without most of its columns and parameters. */
function shortened(text) {
  return text
    .replace(/::\w+( COLLATE "C")?/g, "")
    .replace(/\b(SELECT (?:\w+\.)?\w+)(?:, [\w. ]+){3,}/g, "$1, …")
    .replace(/((?:\([?$\w:, ]+\)|[?$][\w:]*))(?:, (?:\([?$\w:, ]+\)|[?$][\w:]*)){2,}/g, "$1, …")
    .trim();
}
