// Elements without markup: whatever a queue, body or error is called, it becomes text and never HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element: `properties` are its own (class, text, on: {event: handler}), others become attributes. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") made.className = value;
    else if (name === "text") made.textContent = value;
    else if (name === "on") for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Set text only where it changed: a screen reader is not told what stayed the same. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A small line of numbers; `label` is what it says to those who do not see it. */
export function sparkline(label) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 100 24");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const area = document.createElementNS(SVG, "polygon");
  const line = document.createElementNS(SVG, "polyline");
  svg.append(area, line);
  svg.setAttribute("aria-label", label);
  return svg;
}

/** Draw `values`, oldest first, into a sparkline with room for `count` of them; what stays the same is a level line. */
export function draw(svg, values, count) {
  const low = Math.min(...values);
  const span = Math.max(...values) - low;
  const step = 100 / (count - 1);
  const start = 100 - (values.length - 1) * step;
  const height = (value) => (span ? 21 - ((value - low) / span) * 18 : 12);
  const points = values.map((value, at) => `${(start + at * step).toFixed(1)},${height(value).toFixed(1)}`);
  const [area, line] = svg.children;
  line.setAttribute("points", points.join(" "));
  area.setAttribute("points", values.length > 1 ? `${start.toFixed(1)},24 ${points.join(" ")} 100,24` : "");
}
