// The OpenAPI document as a page: chapters, operations, their fields. Nothing is sent from here.

import { byId, element } from "./dom.js";

function type(schema) {
  if (!schema) return "";
  if (schema.enum) return schema.enum.join(" | ");
  const range = [schema.minimum ?? schema.minLength ?? schema.minItems, schema.maximum ?? schema.maxLength ?? schema.maxItems];
  const bounds = range.some((each) => each !== undefined) ? ` ${range[0] ?? ""} … ${range[1] ?? ""}` : "";
  const inner = schema.items ? ` of ${type(schema.items)}` : "";
  return `${schema.type ?? "any"}${inner}${bounds}`;
}

function row(name, where, schema, needed, about) {
  const cells = [name, where, type(schema), needed ? "required" : schema.default !== undefined ? JSON.stringify(schema.default) : "", about ?? ""];
  return element("tr", {}, ...cells.map((text, at) => element("td", {}, at === 0 ? element("code", { text }) : text)));
}

function fields(entry) {
  const rows = (entry.parameters ?? []).map((each) =>
    row(each.name, each.in, each.schema ?? each.content?.["application/json"].schema ?? {}, each.required, each.description),
  );
  const schema = entry.requestBody?.content["application/json"].schema;
  for (const [name, each] of Object.entries(schema?.properties ?? {}))
    rows.push(row(name, "body", each, schema.required?.includes(name), each.description));
  if (!rows.length) return element("p", { class: "muted", text: "No fields." });
  const head = element("tr", {}, ...["Field", "In", "Type", "Default", ""].map((text) => element("th", { scope: "col", text })));
  return element("div", { class: "wide" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}

const response = await fetch("/openapi.json", { credentials: "omit" });
const document_ = await response.json();
const chapters = new Map();
for (const [path, methods] of Object.entries(document_.paths))
  for (const [method, entry] of Object.entries(methods)) {
    const tag = entry.tags[0];
    if (!chapters.has(tag)) chapters.set(tag, []);
    const summary = element("summary", {}, element("code", { text: `${method.toUpperCase()} ${path}` }), ` ${entry.summary}`);
    chapters.get(tag).push(element("details", { class: "message" }, summary, fields(entry), element("p", { class: "muted", text: entry.responses["200"].description })));
  }
byId("operations").append(
  element("p", { text: document_.info.description }),
  ...[...chapters].map(([tag, entries]) => element("section", {}, element("h2", { text: tag }), ...entries)),
);
