// Ties the parts together: the address says what is shown, keys and buttons change it.

import { Detail } from "./detail.js";
import { byId } from "./dom.js";
import { List } from "./list.js";
import { listen } from "./live.js";
import { LoadersView } from "./loaders.js";
import { hideTip } from "./tip.js";

const list = new List();
const detail = new Detail();
const loaders = new LoadersView();
const filter = byId("filter");

// -- the address ------------------------------------------------------------------------------------------------

let before = null; // the operation that was open

async function show() {
  const [, view = "", id = ""] = location.hash.slice(1).split("/");
  const isLoaders = view === "loaders";
  const open = view === "operations" && id ? id : null;
  hideTip();
  byId("operations-view").hidden = isLoaders;
  byId("loaders-view").hidden = !isLoaders;
  byId("to-operations").ariaCurrent = isLoaders ? "false" : "page";
  byId("to-loaders").ariaCurrent = isLoaders ? "page" : "false";
  document.body.classList.toggle("one", open !== null); // on a narrow screen: the operation instead of the list
  list.showCurrent(open);
  if (isLoaders) {
    await loaders.look();
  } else if (open) {
    await detail.open(open);
    byId("title")?.focus({ preventScroll: true });
  } else {
    detail.clear();
    if (before) list.focus(before);
  }
  before = open;
}

addEventListener("hashchange", show);

// -- buttons ----------------------------------------------------------------------------------------------------

filter.addEventListener("input", () => list.filter(filter.value));
for (const button of document.querySelectorAll("[data-choice]")) {
  button.addEventListener("click", () => list.choose(button.dataset.choice));
}
byId("clear-filter").addEventListener("click", () => {
  filter.value = "";
  list.filter("");
  list.choose("all");
  filter.focus();
});
byId("pause").addEventListener("click", () => list.pause());
byId("show-help").addEventListener("click", () => byId("help").showModal());

const THEMES = ["system", "light", "dark"];

function theme(chosen) {
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  byId("theme").lastChild.textContent = chosen;
}

function remembered() {
  try {
    return localStorage.getItem("loader-inspector-theme");
  } catch {
    return null; // storage is switched off
  }
}

function nextTheme() {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % THEMES.length];
  theme(next);
  try {
    localStorage.setItem("loader-inspector-theme", next);
  } catch {
    // It is then the theme of this page only.
  }
}

theme(THEMES.includes(remembered()) ? remembered() : "system");
byId("theme").addEventListener("click", nextTheme);

// -- keys -------------------------------------------------------------------------------------------------------

function goBack() {
  if (hideTip()) return;
  if (location.hash.startsWith("#/operations/")) location.hash = "#/";
}

const KEYS = {
  j: () => list.move(1),
  ArrowDown: () => list.move(1),
  k: () => list.move(-1),
  ArrowUp: () => list.move(-1),
  "/": () => { if (byId("operations-view").hidden) location.hash = "#/"; filter.focus(); filter.select(); },
  Escape: goBack,
  w: () => detail.waterfall?.focusRow(detail.waterfall.at),
  "+": () => detail.waterfall?.zoomBy(2),
  "=": () => detail.waterfall?.zoomBy(2),
  "-": () => detail.waterfall?.zoomBy(0.5),
  0: () => detail.waterfall?.zoomBy(0),
  o: () => { location.hash = before ? `#/operations/${before}` : "#/"; },
  l: () => { location.hash = "#/loaders"; },
  p: () => list.pause(),
  t: nextTheme,
  "?": () => byId("help").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const target = event.target;
  if (target === filter) {
    if (event.key === "Escape") {
      event.preventDefault(); // which would only empty it
      if (filter.value) { filter.value = ""; list.filter(""); } else list.focus(list.current);
    } else if (event.key === "Enter" || event.key === "ArrowDown") {
      event.preventDefault();
      list.move(1);
    }
    return;
  }
  if (target.matches?.("input, textarea, select")) return;
  const inPage = event.key.startsWith("Arrow") && target !== document.body && !target.closest?.("#operations");
  const act = KEYS[event.key];
  if (!act || inPage) return; // arrows scroll what has the focus
  event.preventDefault();
  act();
});

// -- the stream -------------------------------------------------------------------------------------------------

listen((event) => {
  list.receive(event);
  if (!list.paused) loaders.refresh();
});
show();
