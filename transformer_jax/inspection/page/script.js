"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const page = JSON.parse(byId("data").textContent);
  const unpacked = new Map(); // promises of what blobs hold, by their numbers
  const state = { example: 0, kind: 0, layer: 0, head: 0, query: 0, key: 0, zeroed: false };
  let shown = null; // the example: texts, answers, shapes
  let weights = null; // of the chosen layer: {at(head, query, key), largest}
  let cell = 1; // pixels of a cell's side, a fraction of one where the map is wider than the window

  function unpack(number) {
    if (!unpacked.has(number)) {
      const text = atob(byId(`blob-${number}`).textContent);
      const bytes = new Uint8Array(text.length);
      for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      unpacked.set(number, new Response(stream).arrayBuffer());
    }
    return unpacked.get(number);
  }

  function element(tag, text = "", properties = {}) {
    const made = document.createElement(tag);
    made.textContent = text;
    for (const [name, value] of Object.entries(properties)) {
      if (name in made && name !== "role") made[name] = value; else made.setAttribute(name, value);
    }
    return made;
  }

  const visible = (text) => text.replace(/^ $/, "␣").replace(/[\u0000-\u001f\u007f]/g, "�");
  const percent = (p) => p === null ? "" : `${100 * p < 0.01 && p > 0 ? (100 * p).toPrecision(3) : (100 * p).toFixed(p > 0.9999 && p < 1 ? 4 : 2)} %`;
  const said = ({ text, probability }) => // of a long text a product that says nothing
    `${text}${probability === null || probability < 1e-4 ? "" : ` (${percent(probability)})`}`;
  const kind = () => shown.kinds[state.kind];

  async function readMap(map) {
    const multiples = new Uint16Array(await unpack(map.blob)); // of 0.0001
    const [, queries, keys] = map.shape;
    return { ...map, at: (head, query, key) => multiples[(head * queries + query) * keys + key] / 10000 };
  }

  function picture(number, side, label) {
    const { height, width, channels, pixels } = shown.images;
    const canvas = element("canvas", "", { width, height, role: "img", "aria-label": label });
    canvas.style.width = canvas.style.height = `${side}px`;
    const context = canvas.getContext("2d"), image = context.createImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      for (let c = 0; c < 3; c++) {
        image.data[4 * i + c] = pixels[(number * width * height + i) * channels + (channels === 1 ? 0 : c)];
      }
      image.data[4 * i + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }

  // The map of one head.
  function colours() {
    const style = getComputedStyle(document.documentElement);
    return ["--low", "--high"].map((name) => style.getPropertyValue(name).trim().split(" ").map(Number));
  }

  function drawMap() {
    const [, queries, keys] = weights.shape, [low, high] = colours();
    const full = Math.max(weights.largest, Math.min(1, 8 / keys)); // so that equal weights, 1 / keys, stay pale
    const canvas = byId("map").querySelector("canvas");
    Object.assign(canvas, { width: keys, height: queries });
    canvas.style.width = `${keys * cell}px`;
    canvas.style.height = `${queries * cell}px`;
    const context = canvas.getContext("2d"), image = context.createImageData(keys, queries);
    for (let query = 0, i = 0; query < queries; query++) {
      for (let key = 0; key < keys; key++, i += 4) {
        const share = weights.at(state.head, query, key) / full;
        for (let c = 0; c < 3; c++) image.data[i + c] = low[c] + (high[c] - low[c]) * share;
        image.data[i + 3] = 255;
      }
    }
    context.putImageData(image, 0, 0);
    byId("scale").textContent = `Rows are queries, columns are keys. The full colour is a weight of ` +
      `${full.toFixed(4)} or more. Weights are stored to ± 0.00005.`;
    byId("map").setAttribute("aria-label", `Attention map of ${kind().name}, layer ${kind().layers[state.layer].number}, ` +
      `head ${state.head}: ${queries} queries, ${keys} keys; arrow keys move`);
  }

  function drawAxis(id, labels, withImages) {
    const axis = byId(id), isKeys = id === "key-axis", every = Math.ceil(14 / cell);
    const wide = (label) => [...label].reduce((sum, letter) => sum + (letter > "\u00ff" ? 12 : 7.3), 2) > cell;
    axis.classList.toggle("long", (every > 1 || labels.some(wide)) && !withImages);
    axis.replaceChildren(...labels.flatMap((label, number) => {
      if (number % every) return [];
      const tick = element("div", every > 1 ? String(number) : visible(label), { className: "tick" });
      if (withImages) tick.replaceChildren(picture(number, cell - 2, label));
      tick.style[isKeys ? "width" : "height"] = `${cell * Math.min(every, labels.length - number)}px`;
      if (every > 1) tick.style.alignItems = "flex-start"; // at the first of its cells
      return [tick];
    }));
  }

  function layOut() { // as large as the window lets the map be
    const { queries, keys, images } = kind(), main = document.querySelector("main");
    const most = Math.max(600, 0.6 * innerHeight), beside = matchMedia("(max-width: 60rem)").matches ? 14 : 304;
    for (let labels = 40, turn = 0; turn < 2; turn++, labels = byId("query-axis").offsetWidth) {
      const side = Math.min(most / queries.length, Math.min(most, main.clientWidth - beside - labels) / keys.length, most / 16);
      cell = side > 1 ? Math.floor(side) : side;
      drawAxis("key-axis", keys, images);
      drawAxis("query-axis", queries, images);
    }
  }

  function point(query, key) {
    const [, queries, keys] = weights.shape;
    state.query = Math.min(Math.max(query, 0), queries - 1);
    state.key = Math.min(Math.max(key, 0), keys - 1);
    const cursor = byId("cursor");
    cursor.hidden = false;
    Object.assign(cursor.style, { left: `${state.key * cell}px`, top: `${state.query * cell}px`,
      width: `${cell}px`, height: `${cell}px` });
    const value = weights.at(state.head, state.query, state.key).toFixed(4);
    byId("value").textContent = `query ${state.query} “${visible(kind().queries[state.query])}” → ` +
      `key ${state.key} “${visible(kind().keys[state.key])}”: ${value}`;
  }

  // The table of heads.
  const largest = (kinds) => Math.max(...kinds.flatMap(({ layers }) => layers.flatMap(({ changes }) => changes)));

  function mostChanging(kinds) { // kind, layer and head without which the answer changes most
    const most = largest(kinds), has = ({ changes }) => changes.includes(most);
    const { layers } = kinds.find(({ layers }) => layers.some(has)), layer = layers.findIndex(has);
    return { kind: shown.kinds.findIndex((each) => each.layers === layers), layer, head: layers[layer].changes.indexOf(most) };
  }

  function drawHeads() {
    const [low, high] = colours(), most = largest(shown.kinds);
    byId("heads-note").textContent = "The more colour, the more the probability of the answer changes when the head is " +
      `zeroed, on average over the positions: at most by ${most.toPrecision(3)}, the full colour.`;
    byId("heads").replaceChildren(...kind().layers.map((layer, row) => {
      const line = element("tr");
      line.append(element("th", `layer ${layer.number}`, { scope: "row" }));
      layer.changes.forEach((change, head) => {
        const share = change / (most || 1), isChosen = row === state.layer && head === state.head;
        const button = element("button", String(head), { type: "button", "aria-label":
          `layer ${layer.number}, head ${head}; zeroing it changes the answer by ${change.toPrecision(3)}`,
          "aria-pressed": String(isChosen), tabIndex: isChosen ? 0 : -1 });
        Object.assign(button.dataset, { layer: row, head });
        button.style.background = `rgb(${low.map((value, c) => Math.round(value + (high[c] - value) * share)).join(" ")})`;
        button.style.color = share > 0.5 ? "var(--paper)" : "inherit";
        const box = element("td");
        box.append(button);
        line.append(box);
      });
      return line;
    }));
  }

  // The answer, and that without the head.
  const zeroed = () => kind().layers[state.layer].ablated[state.head];

  function drawAnswer() {
    const { answer, places, expected } = shown, other = state.zeroed ? zeroed() : null;
    byId("given").textContent = `${shown.title}${expected === null ? "" : ` (right: ${expected})`}`;
    byId("said").textContent = other === null ? said(answer) :
      `with head ${state.head} of ${kind().name} layer ${kind().layers[state.layer].number} zeroed: ${said(other)}; before: ${said(answer)}`;
    const head = element("tr");
    for (const text of ["at", "says", "probability", ...(other ? ["zeroed: says", "probability"] : [])]) {
      head.append(element("th", text, { scope: "col" }));
    }
    const hasImages = shown.images !== null && shown.images.number === places.length;
    byId("parts").replaceChildren(head, ...places.map((place, i) => {
      const row = element("tr"), at = element("th", visible(place), { scope: "row" });
      if (hasImages) at.prepend(picture(i, 24, place), " ");
      const [text, p] = answer.parts[i];
      row.append(at, element("td", visible(text)), element("td", percent(p)));
      if (other) {
        const [otherText, otherP] = other.parts[i];
        row.append(element("td", visible(otherText)), element("td", percent(otherP)));
        row.className = otherText === text ? "" : "changed";
      }
      return row;
    }));
    byId("zero").setAttribute("aria-pressed", String(state.zeroed));
  }

  function drawLens() {
    byId("lens-section").hidden = !shown.lens.length;
    const head = element("tr");
    head.append(element("td"), ...shown.places.map((place) => element("th", visible(place), { scope: "col" })));
    byId("lens").replaceChildren(head, ...shown.lens.map(({ name, answer }) => {
      const row = element("tr");
      row.append(element("th", name, { scope: "row" }), ...answer.parts.map(([text, p]) => {
        const box = element("td", visible(text));
        box.append(element("small", p === null ? "" : `${(100 * p).toFixed(0)} %`));
        box.style.background = `rgb(${colours()[1].join(" ")} / ${0.35 * (p ?? 0)})`;
        return box;
      }));
      return row;
    }));
  }

  function drawNeighbours() {
    byId("neighbours-section").hidden = !shown.neighbours.length;
    const head = element("tr");
    const isKnown = shown.neighbours.some(({ expected }) => expected !== null);
    for (const text of ["cosine", "example", "answer", ...(isKnown ? ["right"] : [])]) {
      head.append(element("th", text, { scope: "col" }));
    }
    byId("neighbours").replaceChildren(head, ...shown.neighbours.map(({ title, text, probability, expected, cosine, images }) => {
      const row = element("tr"), example = element("td", title);
      if (images !== null) {
        example.append(" ", ...Array.from({ length: images[1] }, (_, i) => picture(images[0] + i, 24, `image ${i}`)));
      }
      row.append(element("td", cosine.toFixed(4)), example, element("td", said({ text, probability })));
      if (isKnown) row.append(element("td", expected ?? ""));
      return row;
    }));
  }

  // What is chosen.
  async function chooseHead(layer, head) {
    state.layer = Math.min(layer, kind().layers.length - 1);
    state.head = Math.min(head, kind().layers[state.layer].ablated.length - 1);
    const focused = byId("heads").contains(document.activeElement);
    for (const button of byId("heads").querySelectorAll("button")) {
      const isChosen = Number(button.dataset.layer) === state.layer && Number(button.dataset.head) === state.head;
      button.setAttribute("aria-pressed", String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
      if (isChosen && focused) button.focus();
    }
    drawAnswer();
    const map = kind().layers[state.layer].map, read = await readMap(map);
    if (map !== kind().layers[state.layer].map) return; // another was chosen in the meantime
    weights = read;
    drawMap();
    point(state.query, state.key);
  }

  async function chooseKind(number) {
    state.kind = number;
    byId("kind").value = number;
    layOut();
    drawHeads();
    await chooseHead(state.layer, state.head);
  }

  async function chooseExample(number) {
    const read = JSON.parse(new TextDecoder().decode(await unpack(page.examples[number].blob)));
    if (read.images) read.images.pixels = Uint8Array.from(atob(read.images.pixels), (c) => c.charCodeAt(0));
    Object.assign(state, { example: number, query: 0, key: 0 });
    const isFirst = shown === null;
    shown = read;
    byId("kind").replaceChildren(...shown.kinds.map(({ name }, i) => element("option", name, { value: i })));
    drawLens();
    drawNeighbours();
    if (isFirst) Object.assign(state, mostChanging(shown.kinds));
    await chooseKind(Math.min(state.kind, shown.kinds.length - 1));
  }

  // Mouse and keys.
  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
    PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -Infinity], End: [0, Infinity] };

  function moveCell(event) {
    const move = MOVES[event.key];
    if (!move || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    point(state.query + move[0], state.key + move[1]);
  }

  function moveHead(event) {
    const move = MOVES[event.key];
    if (!move || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const heads = kind().layers[state.layer].ablated.length;
    chooseHead(Math.max(0, state.layer + move[0]), Math.min(Math.max(0, state.head + move[1]), heads - 1));
  }

  async function start() {
    byId("example").append(...page.examples.map(({ title }, i) => element("option", title, { value: i })));
    byId("example").addEventListener("change", (event) => chooseExample(Number(event.target.value)));
    byId("kind").addEventListener("change", ({ target }) => {
      Object.assign(state, mostChanging([shown.kinds[Number(target.value)]]));
      chooseKind(state.kind);
    });
    byId("choices").addEventListener("submit", (event) => event.preventDefault());
    byId("heads").addEventListener("click", ({ target }) => {
      if (target.dataset.head !== undefined) chooseHead(Number(target.dataset.layer), Number(target.dataset.head));
    });
    byId("heads").addEventListener("keydown", moveHead);
    byId("zero").addEventListener("click", () => { state.zeroed = !state.zeroed; drawAnswer(); });
    byId("map").addEventListener("keydown", moveCell);
    byId("map").addEventListener("mousemove", (event) => {
      const box = byId("map").querySelector("canvas").getBoundingClientRect();
      point(Math.floor((event.clientY - box.top) / cell), Math.floor((event.clientX - box.left) / cell));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawHeads(); drawMap(); drawLens(); });
    addEventListener("resize", () => { layOut(); drawMap(); point(state.query, state.key); });
    await chooseExample(0);
    document.querySelector("main").setAttribute("aria-busy", "false");
  }
  start();
})();
