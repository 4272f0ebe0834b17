// A map of values: coloured cells, or lines from rows to columns, with labels on both sides, and the value of the cell
// that the mouse or the arrow keys point at.
let maps = 0; // how many there are, for their ids

function valueMap(parent, { room = () => parent.clientWidth, moved = () => {}, linesChanged = null } = {}) {
  const id = `value-${maps++}`, row = element("div", "", { className: "axis rows", ariaHidden: "true" });
  const column = element("div", "", { className: "axis columns", ariaHidden: "true" });
  const canvas = element("canvas", "", { ariaHidden: "true" }), cursor = element("div", "", { className: "cursor" });
  const map = element("div", "", { className: "map", role: "application", "aria-roledescription": "map", tabIndex: 0,
    "aria-describedby": id });
  const box = element("div", "", { className: "map-box" }), said = element("output", "", { id, "aria-live": "polite",
    className: "value" }), scale = element("p", "", { className: "note scale" });
  const toggle = element("button", "Lines", { type: "button", className: "lines-toggle", "aria-pressed": "false" });
  map.append(canvas, cursor);
  box.append(column, row, map);
  parent.replaceChildren(...(linesChanged ? [toggle] : []), box, said, scale);
  // What is shown: labels of rows and columns, at(row, column) with its full colour, title, says(row, column, value).
  let shown = null, cell = { width: 1, height: 1 }, at = [0, 0], lines = false;

  function tick(label, index, size, hasImages, every) {
    const made = element("div", every > 1 ? String(index) : visible(label), { className: "tick", title: label });
    if (hasImages) made.replaceChildren(shown.picture(index, size - 2, label));
    return made;
  }

  function drawAxis(axis, labels, side) { // side: "width" of the columns, "height" of the rows
    const size = cell[side], every = Math.ceil(14 / size), hasImages = shown.picture !== undefined && !lines;
    const isWide = (label) => [...label].reduce((sum, letter) => sum + (letter > "\u00ff" ? 12 : 7.3), 2) > size;
    axis.classList.toggle("long", !lines && side === "width" && !hasImages && (every > 1 || labels.some(isWide)));
    axis.replaceChildren(...labels.flatMap((label, index) => {
      if (index % every || (index && every > 1 && size * (labels.length - index) < 12)) return []; // no room
      const made = tick(label, index, size, hasImages, every);
      made.style[lines ? "height" : side] = `${size * Math.min(every, labels.length - index)}px`;
      if (every > 1) made.style.alignItems = "flex-start"; // at the first of its cells
      return [made];
    }));
  }

  function layOut() { // as large as the window allows
    const { rows, columns } = shown, most = Math.max(600, 0.6 * (window.frameElement ? 0 : innerHeight));
    box.classList.toggle("lines", lines);
    for (let labels = 40, turn = 0; turn < 2; turn++, labels = row.offsetWidth) {
      const width = Math.min(room() - 14 - labels, most) / columns.length;
      const side = shown.isSquare ? Math.min(width, most / rows.length, most / 16) : Math.min(width, 44);
      const whole = side > 1 ? Math.floor(side) : side;
      cell = lines ? { width: 20, height: 20 } : { width: whole, height: shown.isSquare ? whole : Math.max(18, whole / 2) };
      drawAxis(column, columns, "width");
      drawAxis(row, rows, "height");
    }
  }

  function drawCells(context) {
    Object.assign(canvas.style, { width: `${shown.columns.length * cell.width}px`, height: `${shown.rows.length * cell.height}px` });
    cellsOf(context, shown);
  }

  function drawLines(context) {
    const { rows, columns } = shown, width = clipped(room() / 3, 240), height = 20 * Math.max(rows.length, columns.length);
    Object.assign(canvas, { width: width * devicePixelRatio, height: height * devicePixelRatio });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    context.scale(devicePixelRatio, devicePixelRatio);
    linesOf(context, shown, width, 20, at[0]);
  }

  function draw() {
    layOut();
    (lines ? drawLines : drawCells)(canvas.getContext("2d"));
    map.setAttribute("aria-label", `${shown.title}: ${shown.rows.length} × ${shown.columns.length}; arrow keys move`);
    scale.textContent = shown.scale;
    point(...at);
  }

  function point(toRow, toColumn) {
    const changed = clipped(toRow, shown.rows.length - 1) !== at[0];
    at = [clipped(toRow, shown.rows.length - 1), clipped(toColumn, shown.columns.length - 1)];
    const [r, c] = at, { width, height } = cell;
    cursor.hidden = lines;
    Object.assign(cursor.style, { left: `${c * width}px`, top: `${r * height}px`, width: `${width}px`, height: `${height}px` });
    for (const [axis, index] of [[row, r], [column, c]]) {
      [...axis.children].forEach((each, i) => each.classList.toggle("pointed", lines && i === index));
    }
    if (lines && changed) drawLines(canvas.getContext("2d"));
    said.textContent = shown.says(r, c, shown.at(r, c));
    moved(r, c);
  }

  map.onkeydown = onMoves((rows, columns) => point(at[0] + rows, at[1] + columns));
  box.addEventListener("mousemove", (event) => {
    if (!lines && !map.contains(event.target)) return;
    const { left, top, width } = canvas.getBoundingClientRect(), [x, y] = [event.clientX - left, event.clientY - top];
    if (!lines) point(Math.floor(y / cell.height), Math.floor(x / cell.width));
    else if (x < width / 2) point(Math.floor(y / 20), at[1]); else point(at[0], Math.floor(y / 20));
  });
  toggle.addEventListener("click", () => {
    lines = !lines;
    toggle.setAttribute("aria-pressed", String(lines));
    draw();
    linesChanged(lines);
  });
  const redraw = () => { if (shown !== null && box.offsetParent !== null) draw(); }; // if its tab is shown
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  return { show(what) { shown = what; draw(); }, point };
}

// The cells of a map, each one pixel of a canvas.
function cellsOf(context, { rows, columns, at, full }) {
  const shade = colours();
  Object.assign(context.canvas, { width: columns.length, height: rows.length });
  const image = context.createImageData(columns.length, rows.length);
  rows.forEach((_, r) => columns.forEach((_, c) => {
    const value = at(r, c);
    if (value !== null) image.data.set([...shade(value / full), 255], 4 * (r * columns.length + c));
  }));
  context.putImageData(image, 0, 0);
}

// The weights of a head as lines from queries, on the left, to keys; the lines of one query are stronger.
function linesOf(context, { rows, columns, at, full }, width, step, query) {
  const style = getComputedStyle(document.documentElement), high = style.getPropertyValue("--high");
  context.lineWidth = Math.min(1.5, step / 6);
  rows.forEach((_, r) => columns.forEach((_, c) => {
    const share = Math.min(1, at(r, c) / full);
    if (share < 0.02) return; // invisible
    context.strokeStyle = r === query ? style.getPropertyValue("--accent") : `rgb(${high} / ${share})`;
    context.globalAlpha = r === query ? share : query === null ? 1 : 0.6;
    context.beginPath();
    context.moveTo(0, (r + 0.5) * step);
    context.lineTo(width, (c + 0.5) * step);
    context.stroke();
  }));
}
