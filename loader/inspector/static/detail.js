// One operation: what it took, what to change, and its batches over time.

import { byId, fill, h } from "./dom.js";
import { batches, clock, counted, duration, hintTitle, label, lined, number, place } from "./format.js";
import { Waterfall } from "./waterfall.js";

const MOST_HINTS = 4; // that are shown at once: the waterfall should be in sight

export class Detail {
  constructor() {
    this.element = byId("detail");
    this.id = null;
    this.waterfall = null;
    this.clear();
  }

  clear() {
    this.id = null;
    this.waterfall = null;
    fill(this.element, h("div", { class: "blank" },
      h("h2", {}, "Choose an operation"),
      h("p", {}, "Its batches over time, where they were asked for, and what to change are shown here. ",
        h("kbd", {}, "j"), " and ", h("kbd", {}, "k"), " move through the list, ", h("kbd", {}, "Enter"), " opens, ",
        h("kbd", {}, "?"), " shows all keys.")));
  }

  /** Fetches an operation and shows it; what was asked for last wins. */
  async open(id) {
    if (id === this.id) return;
    this.id = id;
    const found = await fetched(`api/operations/${encodeURIComponent(id)}`);
    if (this.id !== id) return;
    this.waterfall = null;
    if (found.error) {
      fill(this.element, back(), h("div", { class: "blank" }, h("h2", {}, "Not to be shown"), h("p", {}, found.error)));
    } else {
      this.show(found);
    }
    this.element.scrollTop = 0;
  }

  show(data) {
    const { operation } = data;
    const entries = entriesOf(data);
    const begun = Math.max(data.lead, 0);
    const span = Math.max(operation.seconds, ...entries.map((entry) => entry.finished ?? entry.started ?? begun));
    const waterfall = entries.length > 0 ? new Waterfall(entries, span) : null;
    this.waterfall = waterfall;
    fill(this.element,
      back(),
      header(operation, data),
      data.hints.length > 0 && hints(data.hints),
      waterfall && fallSection(waterfall, entries, data),
      perLoader(entries, data.cached),
    );
    waterfall?.layOut();
  }
}

async function fetched(url) {
  try {
    const response = await fetch(url);
    return await response.json();
  } catch {
    return { error: "The server does not answer." };
  }
}

function back() {
  return h("a", { class: "back", href: "#/" }, "← All operations");
}

/** Batches and runs in one list, their times from the opening of the scope. */
function entriesOf(data) {
  const later = (entry, ...names) => {
    const moved = { ...entry };
    for (const name of names) if (entry[name] !== null) moved[name] = entry[name] + data.lead;
    return moved;
  };
  const names = new Map(data.batches.map((batch) => [batch.id, batch.name]));
  const named = (ids) => [...new Set(ids.map((id) => names.get(id)))];
  const all = [
    ...data.batches.map((batch) => ({
      ...later(batch, "opened", "sent", "started", "finished"),
      isRun: false, inside: named(batch.parents), behind: named(batch.waited_for),
    })),
    ...data.runs.map((run) => ({ ...later(run, "triggered", "started", "finished"), isRun: true })),
  ];
  return all.sort((one, other) => (one.opened ?? one.triggered) - (other.opened ?? other.triggered));
}

function header(operation, data) {
  const cached = Object.values(data.cached).reduce((sum, count) => sum + count, 0);
  const figures = [
    [duration(operation.seconds), "duration"],
    [number(operation.batches), operation.batches === 1 ? "batch" : "batches"],
    [number(operation.keys), operation.keys === 1 ? "key sent" : "keys sent"],
    [number(cached), "from the cache"],
    operation.runs > 0 && [number(operation.runs), operation.runs === 1 ? "trigger run" : "trigger runs"],
    operation.failures > 0 && [number(operation.failures), "failed"],
  ].filter(Boolean);
  const copy = h("button", { type: "button", onclick: () => copied(copy, location.href) }, "Copy link");
  return h("header", { class: "detail-head" },
    h("div", { class: "title" },
      h("h2", { id: "title", tabindex: -1, class: operation.named ? null : "unnamed" }, operation.name),
      h("div", { class: "actions" }, copy,
        h("a", { class: "button", href: `api/operations/${encodeURIComponent(operation.id)}/perfetto.json`, download: true,
          title: "A trace to open at ui.perfetto.dev or chrome://tracing" }, "Perfetto trace"))),
    h("p", { class: "began" }, `Began at ${clock(operation.began)}`,
      !operation.named && " · an operation without a name, called after what it asked for"),
    h("dl", { class: "figures" }, figures.map(([value, name]) => h("div", {}, h("dd", {}, value), h("dt", {}, name)))),
    operation.left_out > 0 && h("p", { class: "left-out" },
      `${counted(operation.left_out, "more batch or run", "more batches and runs")} not kept: there is no room for them.`));
}

async function copied(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed"; // the clipboard is for secure pages only
  }
  setTimeout(() => { button.textContent = "Copy link"; }, 1500);
}

function hints(found) {
  return h("section", { "aria-labelledby": "hints-title" },
    h("h3", { id: "hints-title" }, counted(found.length, "hint")),
    found.slice(0, MOST_HINTS).map(card),
    found.length > MOST_HINTS && h("details", {},
      h("summary", {}, counted(found.length - MOST_HINTS, "more hint")), found.slice(MOST_HINTS).map(card)));
}

function card(hint) {
  return h("article", { class: "hint-card" },
    h("h4", {}, hintTitle(hint.kind), h("span", {}, label(hint.loader))),
    hint.place && h("p", { class: "place" }, h("code", {}, place(hint.place)), hint.place.file && ` in ${hint.place.function}`),
    h("p", {}, `${hint.evidence}.`),
    h("p", { class: "remedy" }, h("strong", {}, "Do: "), withCode(`${hint.remedy}.`)));
}

/** A text whose parts in backquotes are code. */
function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 === 1 ? h("code", {}, part) : part));
}

function fallSection(waterfall, entries, data) {
  const names = [...new Set(entries.map((entry) => label(entry.name)))].sort();
  const choose = h("select", { "aria-label": "Which loaders", onchange: () => waterfall.only(choose.value) },
    h("option", { value: "" }, "All loaders"), names.map((name) => h("option", { value: name }, name)));
  const what = [data.batches.length > 0 && batches(data.batches.length), data.runs.length > 0 && counted(data.runs.length, "run")];
  return h("section", { "aria-labelledby": "fall-title" },
    h("div", { class: "fall-tools" },
      h("h3", { id: "fall-title" }, "Waterfall"),
      h("span", { class: "quiet" }, what.filter(Boolean).join(", ")),
      h("span", { class: "legend" },
        h("span", {}, h("i", { class: "gathers" }), "gathers"), h("span", {}, h("i", { class: "queues" }), "queues"),
        h("span", {}, h("i", { class: "runs" }), "runs")),
      names.length > 1 && choose,
      h("span", { class: "zoom" },
        h("button", { type: "button", "aria-label": "Zoom out", onclick: () => waterfall.zoomBy(0.5) }, "−"),
        waterfall.zoomText,
        h("button", { type: "button", "aria-label": "Zoom in", onclick: () => waterfall.zoomBy(2) }, "+"),
        h("button", { type: "button", onclick: () => waterfall.zoomBy(0) }, "Fit"))),
    waterfall.element);
}

function perLoader(entries, cached) {
  const lines = new Map();
  const line = (name) => {
    if (!lines.has(name)) lines.set(name, { count: 0, size: 0, cached: 0, longest: 0 });
    return lines.get(name);
  };
  for (const entry of entries) {
    const to = line(entry.name);
    to.count += 1;
    to.size += entry.isRun ? entry.triggers : entry.size;
    if (entry.finished !== null && entry.started !== null) to.longest = Math.max(to.longest, entry.finished - entry.started);
  }
  for (const [name, count] of Object.entries(cached)) line(name).cached += count;
  const head = ["Loader", "Batches", "Keys", "Cached", "Longest"];
  return h("section", { "aria-labelledby": "per-title" },
    h("h3", { id: "per-title" }, "By loader"),
    h("div", { class: "scroller" }, h("table", { class: "per-loader" },
      h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, [...lines].map(([name, each]) => h("tr", {},
        h("th", { scope: "row" }, name), h("td", {}, number(each.count)), h("td", {}, number(each.size)),
        h("td", {}, number(each.cached)), h("td", {}, each.count > 0 ? lined(each.longest) : "–")))))));
}
