// One tooltip, for what the pointer or the focus is on. It is read out too: the element is described by it.

import { byId, fill } from "./dom.js";

const tip = byId("tip");
let owner = null;
let anchor = null;

/** Shows the tooltip with some content beside an element. */
export function showTip(element, content, at = element) {
  hideTip();
  owner = element;
  anchor = at;
  fill(tip, content);
  tip.hidden = false;
  element.setAttribute("aria-describedby", "tip");
  put();
}

function put() {
  const from = anchor.getBoundingClientRect();
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(Math.max(from.left, 8), innerWidth - width - 8);
  const below = from.bottom + 6;
  const top = below + height > innerHeight - 8 ? Math.max(from.top - height - 6, 8) : below;
  tip.style.left = `${Math.max(left, 8)}px`;
  tip.style.top = `${top}px`;
}

// What has the focus keeps its tooltip where it scrolls to; the pointer is elsewhere by then.
document.addEventListener("scroll", () => {
  if (owner === null) return;
  if (owner === document.activeElement) put();
  else hideTip();
}, { capture: true, passive: true });

/** Hides it; whether there was one. */
export function hideTip(element = owner) {
  if (owner === null || element !== owner) return false;
  owner.removeAttribute("aria-describedby");
  owner = null;
  tip.hidden = true;
  return true;
}
