// An operation's batches and runs over time. Only the rows that can be seen are in the document.

import { h, styled } from "./dom.js";
import { duration, label, lined, place, sized, tally } from "./format.js";
import { hideTip, showTip } from "./tip.js";

const ROW = 28; // pixels
const MARGIN = 8; // rows beyond the visible ones that are there too
const MOST_ZOOM = 512;
const TICK = 96; // pixels between two ticks, about

export class Waterfall {
  /** @param entries Batches and runs, in the order of their beginning. @param span Seconds that the axis shows. */
  constructor(entries, span) {
    this.entries = entries;
    this.shown = entries;
    this.span = Math.max(span, 1e-6);
    this.zoom = 1;
    this.at = 0; // the row that Tab reaches
    this.rows = new Map(); // by position among the shown ones
    this.axis = h("div", { class: "axis", "aria-hidden": "true" });
    this.head = h("div", { class: "fall-head" }, h("div", { class: "corner" }, h("span", {}, "Batch"), h("span", {}, "Size"), h("span", {}, "Run time")), this.axis);
    this.body = h("div", { class: "fall-body", role: "list", "aria-label": "Batches in the order of their beginning" });
    this.element = h("div", {
      class: "fall", tabindex: -1,
      onscroll: () => this.draw(),
      onkeydown: (event) => this.onKey(event),
    }, this.head, this.body);
    this.zoomText = h("output", { class: "zoom-text" }, "1×");
    new ResizeObserver(() => this.layOut()).observe(this.element);
  }

  /** Shows the entries of one loader only, or all. */
  only(name) {
    this.shown = name ? this.entries.filter((entry) => label(entry.name) === name) : this.entries;
    this.at = 0;
    this.element.scrollTop = 0;
    this.layOut();
  }

  /** Zooms by a factor around the middle of what is seen; 0 shows everything. */
  zoomBy(factor) {
    const { scrollLeft, clientWidth } = this.element;
    const seen = clientWidth - this.nameWidth;
    const middle = (scrollLeft + seen / 2) / this.plotWidth;
    this.zoom = factor === 0 ? 1 : Math.min(Math.max(this.zoom * factor, 1), MOST_ZOOM);
    this.zoomText.textContent = `${this.zoom}×`;
    this.layOut();
    this.element.scrollLeft = middle * this.plotWidth - seen / 2;
    this.draw();
  }

  layOut() {
    if (!this.element.isConnected || this.element.clientWidth === 0) return;
    this.nameWidth = this.element.clientWidth < 560 ? 164 : 312;
    this.plotWidth = Math.max(this.element.clientWidth - this.nameWidth - 1, 120) * this.zoom;
    styled(this.element, { "--names": `${this.nameWidth}px`, "--plot": `${this.plotWidth}px` });
    this.body.style.height = `${this.shown.length * ROW}px`;
    const held = this.body.contains(document.activeElement);
    this.rows.clear();
    this.body.replaceChildren();
    this.draw();
    if (held) this.focusRow(this.at);
  }

  draw() {
    const { scrollTop, scrollLeft, clientHeight, clientWidth } = this.element;
    const first = Math.max(Math.floor(scrollTop / ROW) - MARGIN, 0);
    const last = Math.min(Math.ceil((scrollTop + clientHeight) / ROW) + MARGIN, this.shown.length);
    for (const [index, row] of this.rows) {
      if ((index < first || index >= last) && index !== this.at) {
        row.remove();
        this.rows.delete(index);
      }
    }
    const missing = [];
    for (let index = first; index < last; index += 1) {
      if (!this.rows.has(index)) missing.push(this.makeRow(index));
    }
    if (this.at < this.shown.length && !this.rows.has(this.at)) missing.push(this.makeRow(this.at));
    this.body.append(...missing);
    this.drawAxis(scrollLeft, clientWidth - this.nameWidth);
  }

  drawAxis(from, width) {
    const step = niceStep((this.span * TICK) / this.plotWidth);
    const scale = this.plotWidth / this.span;
    const ticks = [];
    const begin = Math.max(Math.floor((from - TICK) / scale / step), 0);
    for (let tick = begin; tick * step <= Math.min((from + width) / scale, this.span); tick += 1) {
      const x = tick * step * scale;
      if (x > 0 && x > this.plotWidth - TICK / 2) break; // it would not fit
      ticks.push(styled(h("span", {}, tickLabel(tick, step, this.span)), { left: `${x}px` }));
    }
    this.axis.replaceChildren(...ticks);
    // The lines are repeated from the first tick in sight: rounded from the beginning they would be off by then.
    styled(this.element, { "--step": `${step * scale}px`, "--first": `${begin * step * scale}px` });
  }

  makeRow(index) {
    const entry = this.shown[index];
    const times = phases(entry, this.span);
    const bad = entry.outcome !== null && entry.outcome !== "done" && entry.outcome !== "empty";
    const bar = h("span", { class: bad ? "bits bad" : "bits" }, times.map(({ phase, begin, end }) =>
      styled(h("i", { class: phase }), { left: percent(begin / this.span), width: percent((end - begin) / this.span) })));
    const end = times.at(-1).end / this.span;
    const became = entry.outcome === null ? "under way" : entry.outcome === "empty" ? "not sent" : entry.outcome;
    const note = became !== "done" && h("span", { class: "note" }, bad ? `× ${became}` : became);
    if (note) styled(note, end < 0.8 ? { left: `calc(${percent(end)} + 8px)` } : { right: `calc(${percent(1 - end)} + 6px)` });
    const ran = entry.started === null || entry.finished === null ? "–" : lined(entry.finished - entry.started);
    const row = h("div", {
      class: "fall-row", role: "listitem", tabindex: index === this.at ? 0 : -1,
      "aria-setsize": this.shown.length, "aria-posinset": index + 1, "aria-label": spoken(entry),
      onmouseenter: () => showTip(row, tipOf(entry), bar.firstChild),
      onmouseleave: () => { if (document.activeElement !== row) hideTip(row); },
      onfocus: () => { this.at = index; this.mark(entry); showTip(row, tipOf(entry), row.firstChild); },
      onblur: () => { hideTip(row); this.mark(null); },
      onclick: () => row.focus(),
    }, h("span", { class: "row-name" }, h("span", {}, shortName(entry.name)), h("span", {}, tally(entry)), h("span", {}, ran)),
    h("span", { class: "plot" }, bar, note));
    row.entry = entry;
    this.rows.set(index, row);
    return styled(row, { top: `${index * ROW}px` });
  }

  /** Marks what an entry came from and waited for. */
  mark(entry) {
    for (const row of this.rows.values()) {
      row.classList.toggle("related", Boolean(entry) && !entry.isRun &&
        (entry.parents.includes(row.entry.id) || entry.waited_for.includes(row.entry.id)) && !row.entry.isRun);
    }
  }

  focusRow(index) {
    if (this.shown.length === 0) return;
    const to = Math.min(Math.max(index, 0), this.shown.length - 1);
    const before = this.rows.get(this.at);
    if (before) before.tabIndex = -1;
    this.at = to;
    const top = to * ROW;
    const room = this.element.clientHeight - this.head.offsetHeight;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top + ROW > this.element.scrollTop + room) this.element.scrollTop = top + ROW - room;
    this.showTime(phases(this.shown[to], this.span)[0].begin);
    this.draw();
    this.element.scrollIntoView({ block: "nearest" });
    const row = this.rows.get(to);
    row.tabIndex = 0;
    row.focus({ preventScroll: true });
  }

  /** Scrolls sideways where a moment is out of sight. */
  showTime(moment) {
    const x = (moment / this.span) * this.plotWidth;
    const { scrollLeft, clientWidth } = this.element;
    const seen = clientWidth - this.nameWidth;
    if (x < scrollLeft || x > scrollLeft + seen - 24) this.element.scrollLeft = x - seen / 3;
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(Math.floor(this.element.clientHeight / ROW) - 2, 1);
    const to = {
      ArrowDown: this.at + 1, j: this.at + 1, ArrowUp: this.at - 1, k: this.at - 1,
      PageDown: this.at + page, PageUp: this.at - page, Home: 0, End: this.shown.length - 1,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.focusRow(to);
  }
}

const percent = (fraction) => `${100 * fraction}%`;

/** The spans of an entry; one that was never sent, or is under way, ends where the axis does. */
function phases(entry, span) {
  const [opened, sent] = entry.isRun ? [entry.triggered, entry.started] : [entry.opened, entry.sent];
  const end = entry.finished ?? span;
  const marks = [["gathers", opened], ["queues", sent], ["runs", entry.started]].filter(([, at]) => at !== null);
  const found = marks.map(([phase, begin], index) => ({ phase, begin, end: marks[index + 1]?.[1] ?? end }))
    .filter(({ begin, end: until }) => until > begin);
  return found.length > 0 ? found : [{ phase: "runs", begin: opened, end: opened }];
}

/** The least of 1, 2 and 5 times a power of ten that is not below a number. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].find((base) => base * power >= least * 0.999) * power;
}

/** The time of a tick, with as many digits as tell it from the next one. */
function tickLabel(tick, step, span) {
  const [unit, name] = span >= 1 ? [1, "s"] : span >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
  const digits = Math.min(Math.max(-Math.floor(Math.log10((step / unit) * 1.001)), 0), 9);
  return `${((tick * step) / unit).toFixed(digits)} ${name}`;
}

/** A name without the class that most of them share, which the tooltip has. */
function shortName(name) {
  const bare = label(name);
  return bare.slice(bare.lastIndexOf(".") + 1) + name.slice(bare.length);
}

function facts(entry) {
  const begun = entry.isRun ? entry.triggered : entry.opened;
  const ready = entry.isRun ? entry.started : entry.sent;
  const waited = ready === null ? null : ready - begun;
  const queued = entry.isRun || entry.started === null ? 0 : entry.started - entry.sent;
  const ran = entry.started === null || entry.finished === null ? null : entry.finished - entry.started;
  return [
    ["size", sized(entry)],
    ["left because", entry.isRun ? null : entry.reason],
    ["began", duration(begun)],
    [entry.isRun ? "waited" : "gathered", waited === null ? null : duration(waited)],
    ["queued", queued > 0 ? duration(queued) : null],
    ["ran", ran === null ? null : duration(ran)],
    ["outcome", entry.outcome ?? "under way"],
    ["error", entry.error],
    ["missing", entry.missing > 0 ? `nothing came for ${entry.missing}` : null],
    ["fetched again", entry.refetched > 0 ? `${entry.refetched} after clear()` : null],
  ].filter(([, value]) => value !== null && value !== undefined);
}

function tipOf(entry) {
  const most = 4;
  const asked = entry.asked ?? [];
  return [
    h("strong", {}, entry.name),
    h("dl", {}, facts(entry).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    asked.length > 0 && h("ul", {}, asked.slice(0, most).map((each) => h("li", {}, "asked by ", h("code", {}, place(each)),
      each.file && ` in ${each.function}`, each.count > 1 && ` (${each.count} times)`)),
      asked.length > most && h("li", {}, `and ${asked.length - most} more places`)),
    entry.inside?.length > 0 && h("p", {}, `inside a batch of ${entry.inside.join(", ")}`),
    entry.behind?.length > 0 && h("p", {}, `waited for a slot that ${entry.behind.join(", ")} held`),
  ].filter(Boolean);
}

function spoken(entry) {
  return [entry.name, ...facts(entry).map(([name, value]) => `${name} ${value}`)].join(", ");
}
