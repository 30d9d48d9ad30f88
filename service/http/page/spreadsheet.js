// Comma-separated values (RFC 4180), for other programs.

/** The same as in `model_store/text_values.py`. */
const FORMULA = /^'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/;

/** A cell. What a spreadsheet would take for a formula is text with an apostrophe before it. */
function cell(value) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "string" && FORMULA.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** A file with a row for each entry. Each column is a function of an entry. The mark at the beginning
 * tells spreadsheets that it is UTF-8. */
export function csvFile(columns, entries) {
  const rows = entries.map((entry) => Object.values(columns).map((of) => cell(of(entry))));
  const lines = [Object.keys(columns), ...rows].map((row) => `${row.join(",")}\r\n`);
  return new Blob(["\ufeff", ...lines], { type: "text/csv" });
}
