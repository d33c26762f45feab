// What happened when: a row for each batch; where there are hundreds, a row for each loader, the stronger the busier.

import { h, styled } from "./dom.js";
import { counted, duration, number } from "./format.js";

const percent = (fraction) => `${100 * fraction}%`;

/** The drawing of what the server sends as `waterfall`. */
export function waterfall({ seconds, many, rows }) {
  return h("div", { class: "fall" },
    h("ol", { "aria-label": many ? "Batches of each loader" : "Batches in the order of their beginning" },
      rows.map((row) => (many ? strip(row, rows) : bar(row, seconds)))),
    h("div", { class: "axis", "aria-hidden": "true" }, h("span", {}, "0"), h("span", {}, duration(seconds / 2)), h("span", {}, duration(seconds))));
}

function bar(row, seconds) {
  const bits = row.bits.map(({ phase, begin, end }) =>
    styled(h("i", { class: phase }), { left: percent(begin / seconds), width: percent((end - begin) / seconds) }));
  const ran = row.bits.filter(({ phase }) => phase === "runs").reduce((sum, { begin, end }) => sum + end - begin, 0);
  const keys = row.keys === null ? "" : counted(row.keys, "key");
  return line(row.name, keys, `ran ${duration(ran)}`, h("span", { class: "plot", "aria-hidden": "true" }, bits));
}

function strip(row, rows) {
  const most = Math.max(...rows.flatMap(({ busy }) => busy));
  const bins = row.busy.map((each) => styled(h("i", { class: "runs" }), { opacity: each === 0 ? 0 : 0.15 + (0.85 * each) / most }));
  return line(row.name, `× ${number(row.batches)}`, "", h("span", { class: "plot dense", "aria-hidden": "true" }, bins));
}

function line(name, size, spoken, plot) {
  return h("li", { title: [name, size, spoken].filter(Boolean).join(", ") },
    h("span", { class: "name" }, h("span", {}, name.split("(")[0]), h("small", {}, size)), plot);
}
