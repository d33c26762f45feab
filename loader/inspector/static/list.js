// The list of operations, latest first.

import { byId, h } from "./dom.js";
import { batches, clock, counted, duration, hintTitle } from "./format.js";

const CHOICES = {
  all: () => true,
  hints: (operation) => operation.hints.length > 0,
  failures: (operation) => operation.failures > 0,
};

export class List {
  constructor() {
    this.rows = new Map(); // by id: { operation, item, link, text }
    this.waiting = []; // events that came during a pause
    this.paused = false;
    this.choice = "all";
    this.words = [];
    this.element = byId("operations");
  }

  /** Takes an event of the stream. */
  receive(event) {
    if (this.paused) {
      if (event.reset) this.waiting = [];
      this.waiting.push(event);
      this.showPause();
      return;
    }
    if (event.reset) {
      this.rows.clear();
      this.element.replaceChildren();
    }
    const fresh = document.createDocumentFragment();
    for (const operation of event.operations) {
      if (this.rows.has(operation.id)) continue;
      const row = makeRow(operation);
      this.rows.set(operation.id, row);
      fresh.prepend(row.item);
      row.item.hidden = !this.matches(row);
      row.item.classList.toggle("fresh", !event.reset);
    }
    this.element.prepend(fresh);
    for (const [id, row] of this.rows) {
      if (row.operation.number >= event.oldest) break;
      // Not the one that somebody stands on: the focus would be lost.
      if (row.link === document.activeElement) continue;
      row.item.remove();
      this.rows.delete(id);
    }
    this.showCount();
    this.showCurrent(this.current);
  }

  pause() {
    this.paused = !this.paused;
    const waiting = this.waiting;
    this.waiting = [];
    if (!this.paused) for (const event of waiting) this.receive(event);
    this.showPause();
  }

  showPause() {
    const count = this.waiting.reduce((sum, event) => sum + event.operations.length, 0);
    const button = byId("pause");
    button.setAttribute("aria-pressed", String(this.paused));
    button.textContent = this.paused ? (count ? `Resume (${count})` : "Resume") : "Pause";
  }

  filter(text) {
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.showMatching();
  }

  choose(choice) {
    this.choice = choice;
    for (const button of document.querySelectorAll("[data-choice]")) {
      button.setAttribute("aria-pressed", String(button.dataset.choice === choice));
    }
    this.showMatching();
  }

  matches(row) {
    return CHOICES[this.choice](row.operation) && this.words.every((word) => row.text.includes(word));
  }

  showMatching() {
    for (const row of this.rows.values()) row.item.hidden = !this.matches(row);
    this.showCount();
    this.showCurrent(this.current);
  }

  showCount() {
    const all = this.rows.size;
    const shown = this.visible().length;
    byId("count").textContent = shown === all ? counted(all, "operation") : `${shown} of ${all}`;
    byId("empty").hidden = all > 0;
    byId("none").hidden = all === 0 || shown > 0;
  }

  visible() {
    return [...this.element.children].filter((item) => !item.hidden);
  }

  /** Marks the operation that is open; one row at a time can be reached by Tab. */
  showCurrent(id) {
    this.current = id;
    for (const row of this.rows.values()) {
      row.link.tabIndex = -1;
      if (row.operation.id === id) row.link.setAttribute("aria-current", "true");
      else row.link.removeAttribute("aria-current");
    }
    const chosen = this.rows.get(id);
    const item = chosen && !chosen.item.hidden ? chosen.item : this.visible()[0];
    if (item) item.firstChild.tabIndex = 0;
  }

  /** Moves the focus by some rows, from where it is or from the one that is open. */
  move(by) {
    const items = this.visible();
    const at = items.indexOf(document.activeElement?.closest("#operations > li"));
    const from = at >= 0 ? at : items.findIndex((item) => item.firstChild.hasAttribute("aria-current"));
    const to = from < 0 ? 0 : Math.min(Math.max(from + by, 0), items.length - 1);
    items[to]?.firstChild.focus();
  }

  focus(id) {
    const row = this.rows.get(id);
    if (row && !row.item.hidden) row.link.focus();
    else this.visible()[0]?.firstChild.focus();
  }
}

function makeRow(operation) {
  const { hints, failures } = operation;
  const what = [
    operation.batches > 0 && batches(operation.batches),
    operation.runs > 0 && counted(operation.runs, "run"),
    operation.batches + operation.runs === 0 && "all from the cache",
  ].filter(Boolean).join(", ");
  const link = h("a", { href: `#/operations/${operation.id}`, tabindex: -1 },
    h("span", { class: operation.named ? "name" : "name unnamed", title: operation.name }, operation.name),
    h("span", { class: "time" }, duration(operation.seconds)),
    h("span", { class: "facts" }, `${clock(operation.began)} · ${what}`),
    h("span", { class: "marks" },
      hints.length > 0 && h("span", { class: "mark hint" }, counted(hints.length, "hint")),
      failures > 0 && h("span", { class: "mark bad" }, `${failures} failed`)));
  const words = [operation.name, ...operation.loaders, ...hints, ...hints.map(hintTitle)];
  return { operation, link, item: h("li", { onanimationend: ({ currentTarget }) => currentTarget.classList.remove("fresh") }, link), text: words.join("\n").toLowerCase() };
}
