// DOM elements, and the data that the file holds for them.
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const unpacked = new Map(); // promises of the blobs' contents, by number
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
  PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -Infinity], End: [0, Infinity] };

function element(tag, text = "", properties = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && name !== "role") made[name] = value; else made.setAttribute(name, value);
  }
  return made;
}

const visible = (text) => text.replace(/^ +$/, (spaces) => "␣".repeat(spaces.length)).replace(/\n/g, "↵").replace(/[\u0000-\u001f\u007f]/g, "�");
const clipped = (value, most) => Math.min(Math.max(value, 0), most);
const number = (value) => // all have four digits already
  value === null ? "not finite" : Math.abs(value) < 1e4 ? value.toPrecision(4) : String(value);

const onMoves = (moved) => (event) => { // handler of `onkeydown` for arrow keys, page up and down, home and end
  const move = MOVES[event.key];
  if (!move || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  moved(...move);
};

const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

function unpack(blob) {
  if (!unpacked.has(blob)) {
    const stream = new Blob([bytesOf(byId(`blob-${blob}`).textContent)]).stream().pipeThrough(new DecompressionStream("gzip"));
    unpacked.set(blob, new Response(stream).arrayBuffer());
  }
  return unpacked.get(blob);
}

async function weightsOf({ blob, shape, largest }) { // of a layer's heads
  const multiples = new Uint16Array(await unpack(blob)), [, queries, keys] = shape; // of 0.0001
  const full = Math.max(largest, Math.min(1, 8 / keys)); // so that equal weights, 1 / keys, stay pale
  return { shape, full, at: (head, query, key) => multiples[(head * queries + query) * keys + key] / 10000 };
}

function colours() { // red, green and blue of a share of the full colour, from -1 to 1
  const style = getComputedStyle(document.documentElement);
  const [low, high, negative] = ["--low", "--high", "--negative"].map((name) =>
    style.getPropertyValue(name).trim().split(" ").map(Number));
  return (share) => low.map((value, c) =>
    Math.round(value + ((share < 0 ? negative : high)[c] - value) * Math.min(1, Math.abs(share))));
}

function paint(box, share) {
  box.style.background = `rgb(${colours()(share).join(" ")})`;
  box.style.color = Math.abs(share) > 0.5 ? "var(--paper)" : "inherit";
}

// A table of buttons, one of which is chosen by mouse or arrow keys; only the chosen one is in the tab order.
function buttonTable(table, names, sizes, draw, choose) {
  const buttons = sizes.map((size, row) => Array.from({ length: size }, (_, column) => {
    const button = element("button", "", { type: "button", tabIndex: -1, "aria-pressed": "false" });
    Object.assign(button.dataset, { row, column });
    draw(button, row, column);
    button.addEventListener("click", () => choose(row, column));
    return button;
  }));
  table.replaceChildren(...buttons.map((line, row) => {
    const made = element("tr");
    made.append(element("th", names[row], { scope: "row" }), ...line.map((button) => {
      const box = element("td");
      box.append(button);
      return box;
    }));
    return made;
  }));
  let chosen = buttons[0][0];
  table.onkeydown = onMoves((rows, columns) => {
    const row = clipped(Number(chosen.dataset.row) + rows, buttons.length - 1);
    choose(row, clipped(Number(chosen.dataset.column) + columns, buttons[row].length - 1));
  });
  return (row, column) => { // mark this one as chosen
    const isFocused = table.contains(document.activeElement);
    for (const [button, isChosen] of [[chosen, false], [buttons[row][column], true]]) {
      button.tabIndex = isChosen ? 0 : -1;
      button.setAttribute("aria-pressed", String(isChosen));
    }
    chosen = buttons[row][column];
    if (isFocused) chosen.focus();
  };
}
