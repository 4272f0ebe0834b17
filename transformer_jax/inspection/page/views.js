// Views of arrays, each in an element: heads, tokens and grids.
const NAMED = 3; // values beyond the colour scale that are named
const named = (names, index) => names[index] === String(index) ? names[index] : `${index} “${visible(names[index])}”`;

function attentionMap(weights, head, { queries, keys, picture }, title) { // as `valueMap` shows it
  return { rows: queries, columns: keys, at: (query, key) => weights.at(head, query, key), full: weights.full, picture, title,
    isSquare: true, scale: `Rows are queries, columns are keys. The full colour is a weight of ` +
      `${weights.full.toFixed(4)}. Weights are stored to ± 0.00005.`,
    says: (query, key, weight) => `query ${named(queries, query)} → key ${named(keys, key)}: ${weight.toFixed(4)}` };
}

const largestOf = (numbers) => numbers.reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), 0); // `Math.max(...numbers)` has a limit

function scaleOf(values, full, says) { // text: the full colour, and which values are beyond it
  const cells = values.flatMap((line, row) => line.map((value, column) => ({ row, column, value })));
  const beyond = cells.filter(({ value }) => Math.abs(value ?? 0) > full), count = beyond.length;
  const largest = beyond.sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, NAMED);
  return `The full colour is ${number(full)}` +
    (cells.some(({ value }) => value < 0) ? "; values below zero have another colour." : ".") +
    (count ? ` ${count} ${count === 1 ? "cell is" : "cells are"} beyond the scale${count > NAMED ? ", the largest" : ""}: ` +
      `${largest.map(({ row, column, value }) => says(row, column, value)).join("; ")}.` : "");
}

function gridMap({ title, rows, columns, values, full }, what) { // as `valueMap` shows it
  const says = (row, column, value) => `${rows[row]}, ${what} ${named(columns, column)}: ${number(value)}`;
  return { rows, columns, at: (row, column) => values[row][column], full, title, scale: scaleOf(values, full, says), says };
}

async function headsView(parent, { layers, queries, keys }) {
  const weights = await Promise.all(layers.map(weightsOf)), labels = { queries, keys };
  const box = element("div", "", { className: "table-box" }), map = element("div");
  const table = element("table", "", { id: "heads", className: "thumbnails", "aria-label": "Layers and heads; arrow keys choose" });
  box.append(table);
  parent.replaceChildren(box, map);
  parent.classList.add("heads-view");
  let layer = 0, head = 0, lines = false;

  function thumbnail(button, row, column) {
    const canvas = element("canvas", "", { ariaHidden: "true" }), shown = attentionMap(weights[row], column, labels, "");
    const size = 64 * Math.min(2, devicePixelRatio), context = canvas.getContext("2d");
    button.setAttribute("aria-label", `layer ${row}, head ${column}`);
    Object.assign(canvas, lines ? { width: size, height: size } : { width: keys.length, height: queries.length });
    if (lines) linesOf(context, shown, size, size / Math.max(queries.length, keys.length), null);
    else cellsOf(context, shown);
    button.replaceChildren(canvas);
  }

  function choose(row, column) {
    [layer, head] = [row, column];
    mark(layer, head);
    view.show(attentionMap(weights[layer], head, labels, `Attention map of layer ${layer}, head ${head}`));
  }

  let mark;
  function drawTable() {
    mark = buttonTable(table, layers.map((_, row) => `layer ${row}`), layers.map(({ shape }) => shape[0]), thumbnail, choose);
    mark(layer, head);
  }
  const view = valueMap(map, { linesChanged(are) { lines = are; drawTable(); } });
  drawTable();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTable);
  choose(0, 0);
}

// Coloured tokens, one line for each row of values; below, the value of the token that mouse or arrow keys point at.
function tokensView(parent, { tokens, names, values, full }) {
  const box = element("div", "", { className: "tokens", role: "application", "aria-roledescription": "tokens",
    "aria-label": `${tokens.length} tokens; arrow keys move`, tabIndex: 0 });
  const said = element("output", "", { className: "value", "aria-live": "polite" });
  const spans = values.map((line, row) => line.map((value, index) => {
    const span = element("span", visible(tokens[index]));
    paint(span, (value ?? 0) / full);
    span.addEventListener("mousemove", () => point(row, index));
    return span;
  }));
  box.append(...spans.map((line, row) => {
    const made = element("p", names[row] ? `${names[row]} ` : "");
    made.append(...line);
    return made;
  }));
  let at = [0, 0];
  function point(row, index) {
    spans[at[0]][at[1]].classList.remove("pointed");
    at = [clipped(row, values.length - 1), clipped(index, tokens.length - 1)];
    spans[at[0]][at[1]].classList.add("pointed");
    said.textContent = says(...at, values[at[0]][at[1]]);
  }
  const says = (row, index, value) => `${names[row]}${names[row] ? ", " : ""}${named(tokens, index)}: ${number(value)}`;
  box.onkeydown = onMoves((rows, moves) => point(at[0] + rows, at[1] + moves));
  parent.replaceChildren(box, said, element("p", scaleOf(values, full, says), { className: "note" }));
  point(0, 0);
}

// Tables of numbers, one of which is chosen.
function gridView(parent, { frames, what }) {
  const choice = element("select", "", { "aria-label": "Grid" }), map = element("div");
  choice.append(...frames.map(({ title }, value) => element("option", title, { value })));
  choice.hidden = frames.length < 2;
  parent.replaceChildren(choice, map);
  const view = valueMap(map);
  function show() { // start at the largest number
    const { columns, values } = frames[choice.value], all = values.flat(), largest = largestOf(all);
    const place = Math.max(0, all.findIndex((value) => Math.abs(value ?? 0) === largest));
    view.show(gridMap(frames[choice.value], what));
    view.point(Math.floor(place / columns.length), place % columns.length);
  }
  choice.addEventListener("change", show);
  show();
}
