// One tooltip, for what the pointer or the focus is on. It is read out too: the element is described by it.

import { byId } from "./dom.js";

const tip = byId("tip");
let owner = null;

/** Shows the tooltip with some content beside an element. */
export function showTip(element, content, at = element) {
  hideTip();
  owner = element;
  tip.replaceChildren(...content);
  tip.hidden = false;
  element.setAttribute("aria-describedby", "tip");
  const from = at.getBoundingClientRect();
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(Math.max(from.left, 8), innerWidth - width - 8);
  const below = from.bottom + 6;
  const top = below + height > innerHeight - 8 ? Math.max(from.top - height - 6, 8) : below;
  tip.style.left = `${Math.max(left, 8)}px`;
  tip.style.top = `${top}px`;
}

/** Hides it; whether there was one. */
export function hideTip(element = owner) {
  if (owner === null || element !== owner) return false;
  owner.removeAttribute("aria-describedby");
  owner = null;
  tip.hidden = true;
  return true;
}
