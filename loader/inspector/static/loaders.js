// What each loader did since the inspector was made: counts, and how sizes and times are spread.

import { byId, fill, h, styled } from "./dom.js";
import { counted, duration, number, rounded } from "./format.js";

const PACE = 1000; // milliseconds at least between two looks

export class LoadersView {
  constructor() {
    this.element = byId("loaders-view");
    this.shown = "";
    this.timer = null;
  }

  /** Looks again soon, if the view is open. */
  refresh() {
    if (this.element.hidden || this.timer !== null) return;
    this.timer = setTimeout(() => { this.timer = null; this.look(); }, PACE);
  }

  async look() {
    if (this.element.hidden) return;
    let text;
    try {
      const response = await fetch("api/loaders");
      if (!response.ok) return;
      text = await response.text();
    } catch {
      return; // the status says that the server does not answer
    }
    if (text === this.shown) return;
    this.shown = text;
    const { loaders, left_out: leftOut } = JSON.parse(text);
    fill(this.element,
      h("header", { class: "loaders-head" }, h("h2", {}, "Loaders"),
        h("p", { class: "quiet" }, "Everything that this process did since the inspector was made, in operations or outside of them.")),
      loaders.length > 0 ? loaders.map(card) : blank(),
      leftOut && h("p", { class: "left-out" }, "There are more names than are counted: somebody makes them as it goes."),
    );
  }
}

function blank() {
  return h("div", { class: "blank" }, h("h2", {}, "No loader yet"),
    h("p", {}, "Send a query to your app: each loader, batcher and trigger that did something is listed here."));
}

function card(figures) {
  const isRun = !["loader", "batcher"].includes(figures.kind);
  const [one, many] = { loader: ["key", "keys"], batcher: ["item", "items"] }[figures.kind] ?? ["trigger", "triggers"];
  const share = figures.asked > 0 && figures.cached > 0 ? ` (${Math.round((100 * figures.cached) / figures.asked)} %)` : "";
  const facts = [
    isRun ? counted(figures.calls, "run") : counted(figures.calls, "batch", "batches"),
    `${counted(figures.asked, one, many)} asked for`,
    figures.cached > 0 && `${number(figures.cached)} from the cache${share}`,
    figures.dropped > 0 && `${number(figures.dropped)} dropped`,
    figures.overloaded > 0 && `${number(figures.overloaded)} refused`,
    figures.missing > 0 && `${number(figures.missing)} missing`,
    figures.failures > 0 && `${number(figures.failures)} failed`,
    ...Object.entries(figures.reasons).map(([reason, count]) => `${number(count)} ${reason}`),
  ].filter(Boolean);
  return h("section", { class: "card", "aria-label": figures.name },
    h("h3", {}, figures.name, h("span", { class: "kind" }, figures.kind)),
    h("ul", { class: "card-facts" }, facts.map((fact) => h("li", {}, fact))),
    h("div", { class: "charts" },
      chart(isRun ? "Triggers of a run" : `Size of a batch, in ${many}`, figures.size, rounded),
      chart("Wait until the call", figures.wait, duration),
      chart("Run time", figures.run_time, duration)));
}

/** A histogram as a table, which it is: the bars are its figures once more. */
function chart(title, { bounds, counts, count, mean, p50, p95 }, shown) {
  const first = counts.findIndex((each) => each > 0);
  const last = counts.findLastIndex((each) => each > 0);
  const most = Math.max(...counts);
  const upTo = (bound) => (bound === null ? `over ${shown(bounds.at(-1))}` : `≤ ${shown(bound)}`);
  const rows = first < 0 ? [] : counts.slice(first, last + 1).map((each, index) => {
    const bound = bounds[first + index] ?? null;
    const bar = each > 0 && styled(h("i"), { width: `${(100 * each) / most}%` });
    return h("tr", {}, h("th", { scope: "row" }, upTo(bound)), h("td", { class: "bar-cell" }, bar), h("td", {}, number(each)));
  });
  return h("figure", {},
    h("figcaption", {}, title),
    count > 0
      ? [h("p", { class: "summary" }, summary("mean", shown(mean)), summary("p50", upTo(p50)), summary("p95", upTo(p95))),
        h("table", { class: "histogram", "aria-label": title }, h("tbody", {}, rows))]
      : h("p", { class: "quiet" }, "nothing yet"));
}

function summary(name, value) {
  return h("span", {}, h("span", {}, name), ` ${value}`);
}
