// Elements made from data. Every text becomes a text node: nothing that is shown is ever read as HTML.

/** An element with attributes and children; what is null, undefined or false is left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  return fill(element, ...children);
}

/** Puts children into an element in place of what it holds; what is null, undefined or false is left out. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Sets style properties; the page's policy allows no style attributes. */
export function styled(element, properties) {
  for (const [name, value] of Object.entries(properties)) element.style.setProperty(name, value);
  return element;
}

export const byId = (id) => document.getElementById(id);
