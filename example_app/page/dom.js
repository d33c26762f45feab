// Elements made from data. Every text becomes a text node: nothing that is shown is ever read as HTML.

export const byId = (id) => document.getElementById(id);

/** An element with attributes, listeners (`onclick`) and children; what is null or false is left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Sets style properties; the page's policy allows no style attributes. */
export function styled(element, properties) {
  for (const [name, value] of Object.entries(properties)) element.style.setProperty(name, value);
  return element;
}

/** Shows a state: its name for the style sheet, its text for people. */
export function showState(element, state, text) {
  element.dataset.state = state;
  const shown = element.querySelector("span") ?? element;
  if (shown.textContent !== text) shown.textContent = text; // it is read out
}

/** What the tab remembers, or null: some browsers do not let it. */
export function remembered(name, storage = "sessionStorage") {
  try {
    return JSON.parse(window[storage].getItem(name));
  } catch {
    return null;
  }
}

export function remember(name, value, storage = "sessionStorage") {
  try {
    window[storage].setItem(name, JSON.stringify(value));
  } catch {
    // It is then forgotten with the page.
  }
}
