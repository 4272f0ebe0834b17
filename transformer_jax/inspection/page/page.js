// The inspection page of a model's examples: one tab for each view.
const state = { kind: 0, layer: 0, head: 0, zeroed: false, tab: "heads" };
let shown = null; // the example: texts, answers, shapes

const percent = (p, decimals = 2) => { // with enough decimals to show neither 0 nor 100 unless it is 0 or 1
  if (p === null) return "";
  const text = (100 * p).toFixed(decimals);
  const isRounded = p > 0 && p < 1 && [0, 100].includes(Number(text));
  return isRounded && decimals < 15 ? percent(p, decimals + 1) : `${text} %`;
};
const said = ({ text, probability }) => // the product over a long text is meaninglessly small
  `${visible(text)}${probability === null || probability < 1e-4 ? "" : ` (${percent(probability)})`}`;
const kind = () => shown.kinds[state.kind];

function picture({ height, width, channels, pixels }, index, side, label) {
  const canvas = element("canvas", "", { width, height, role: "img", "aria-label": label });
  canvas.style.width = canvas.style.height = `${side}px`;
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let c = 0; c < 3; c++) {
      image.data[4 * i + c] = pixels[(index * width * height + i) * channels + (channels === 1 ? 0 : c)];
    }
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function headed(names) { // a table's first row
  const row = element("tr");
  row.append(...names.map((name) => element("th", visible(name), { scope: "col" })));
  return row;
}

// Heads: how much the answer changes without each head, the map of the chosen head, and the answer.
const largest = (kinds) => Math.max(...kinds.flatMap(({ layers }) => layers.flatMap(({ changes }) => changes)));

function mostChanging(kinds) { // kind, layer and head without which the answer changes most
  const most = largest(kinds), has = ({ changes }) => changes.includes(most);
  const { layers } = kinds.find(({ layers }) => layers.some(has)), layer = layers.findIndex(has);
  return { kind: shown.kinds.findIndex((each) => each.layers === layers), layer, head: layers[layer].changes.indexOf(most) };
}

let markHead, attention; // which head is chosen; the map

function drawHeads() {
  const most = largest(shown.kinds), { layers } = kind();
  byId("heads-note").textContent = "The deeper the colour, the more the probability of the answer changes if the head is " +
    `zeroed, averaged over positions. The full colour is the largest change, ${most.toPrecision(3)}.`;
  markHead = buttonTable(byId("heads"), layers.map((_, row) => `layer ${row}`), layers.map(({ changes }) => changes.length),
    (button, row, column) => {
      const change = layers[row].changes[column];
      button.textContent = column;
      button.setAttribute("aria-label",
        `layer ${row}, head ${column}; zeroing it changes the answer by ${change.toPrecision(3)}`);
      paint(button, change / (most || 1));
    }, chooseHead);
  return chooseHead(state.layer, state.head);
}

async function chooseHead(layer, head) {
  state.layer = Math.min(layer, kind().layers.length - 1);
  const { map, ablated } = kind().layers[state.layer];
  state.head = Math.min(head, ablated.length - 1);
  markHead(state.layer, state.head);
  drawAnswer();
  const weights = await weightsOf(map);
  if (map !== kind().layers[state.layer].map) return; // another was chosen in the meantime
  const { name, images } = kind(), labels = { ...kind(), picture: images ? picture.bind(null, shown.images) : undefined };
  attention.show(attentionMap(weights, state.head, labels, `Attention map of ${name}, layer ${state.layer}, head ${state.head}`));
}

function drawAnswer() {
  const { answer, places, expected } = shown, { ablated } = kind().layers[state.layer];
  const other = state.zeroed ? ablated[state.head] : null;
  byId("given").textContent = `${shown.title}${expected === null ? "" : ` (expected: ${expected})`}`;
  byId("said").textContent = other === null ? said(answer) :
    `with head ${state.head} of ${kind().name} layer ${state.layer} zeroed: ${said(other)}; before: ${said(shown.unchanged)}`;
  const hasImages = shown.images !== null && shown.images.number === places.length;
  const names = ["position", "prediction", "probability", ...(other ? ["zeroed: prediction", "probability"] : [])];
  byId("parts").replaceChildren(headed(names), ...places.map((place, i) => {
    const row = element("tr"), at = element("th", visible(place), { scope: "row" });
    if (hasImages) at.prepend(picture(shown.images, i, 24, place), " ");
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

// The other tabs.
function drawLens() {
  byId("lens").replaceChildren(headed(["", ...shown.places]), ...shown.lens.map(({ name, answer }) => {
    const row = element("tr"), high = colours()(1).join(" ");
    row.append(element("th", name, { scope: "row" }), ...answer.parts.map(([text, p]) => {
      const box = element("td", visible(text));
      box.append(element("small", percent(p, 0)));
      box.style.background = `rgb(${high} / ${0.35 * (p ?? 0)})`;
      return box;
    }));
    return row;
  }));
}

function drawAttribution() {
  const { rows, columns, values, full, heads } = shown.attribution;
  const ofHeads = valueMap(byId("attribution-heads")), numbers = heads.values[0]?.map((_, head) => String(head)) ?? [];
  const all = valueMap(byId("attribution"), { moved(_, position) {
    byId("attribution-place").textContent = `Heads at ${named(columns, position)}`;
    const at = heads.values.map((layer) => layer.map((head) => head[position]));
    ofHeads.show(gridMap({ title: "Heads", rows: heads.rows, columns: numbers, values: at, full: heads.full }, "head"));
  } });
  all.show(gridMap({ title: "Components", rows, columns, values, full }, "position"));
  all.point(0, columns.length - 1);
}

function drawPatching() {
  byId("patching-note").textContent = shown.patching.note;
  gridView(byId("patching"), { frames: shown.patching.frames, what: "position" });
}

function drawFeatures() {
  const choice = byId("activation");
  choice.replaceChildren(...shown.features.map(({ name }, value) => element("option", name, { value })));
  choice.onchange = () => drawActivation(shown.features[choice.value]);
  choice.onchange();
}

function drawActivation({ width, places, numbers, values, full, fulls, most }) {
  const top = places.map((_, at) => numbers.map((_, i) => i).sort((a, b) => values[b][at] - values[a][at]).slice(0, most));
  byId("features-note").textContent = `The ${most} most active of ${width} features at each position; choose one to see it ` +
    "at all positions.";
  const mark = buttonTable(byId("features"), places.map(visible), top.map((line) => line.length), (button, row, column) => {
    const feature = top[row][column];
    button.textContent = `${numbers[feature]}: ${number(values[feature][row])}`;
    paint(button, values[feature][row] / full);
  }, choose);
  function choose(row, column) {
    mark(row, column);
    const feature = top[row][column];
    tokensView(byId("feature-text"), { tokens: places, names: [`feature ${numbers[feature]}`], values: [values[feature]],
      full: fulls[feature] });
  }
  choose(0, 0);
}

function drawNeighbours() {
  const isKnown = shown.neighbours.some(({ expected }) => expected !== null);
  const head = headed(["cosine", "example", "answer", ...(isKnown ? ["expected"] : [])]);
  byId("neighbours").replaceChildren(head, ...shown.neighbours.map(({ title, text, probability, expected, cosine, images }) => {
    const row = element("tr"), example = element("td", title);
    if (images !== null) {
      example.append(" ", ...Array.from({ length: images.number }, (_, i) => picture(images, i, 24, `image ${i}`)));
    }
    row.append(element("td", cosine.toFixed(4)), example, element("td", said({ text, probability })));
    if (isKnown) row.append(element("td", expected ?? ""));
    return row;
  }));
}

const TABS = { // the function that draws a tab, and whether an example has content for it
  heads: [drawHeads, () => true],
  lens: [drawLens, () => shown.lens.length],
  attribution: [drawAttribution, () => shown.attribution],
  patching: [drawPatching, () => shown.patching],
  features: [drawFeatures, () => shown.features?.length],
  alike: [drawNeighbours, () => shown.neighbours.length],
};

function chooseTab(name) {
  state.tab = name;
  for (const each of Object.keys(TABS)) {
    const tab = byId(`${each}-tab`), isChosen = each === name;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
    byId(`${each}-panel`).hidden = !isChosen;
  }
  return TABS[name][0]();
}

function makeTabs() {
  byId("tabs").append(...Object.keys(TABS).map((name) => {
    const panel = byId(`${name}-panel`), id = `${name}-tab`;
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", id);
    const tab = element("button", panel.dataset.tab, { id, type: "button", role: "tab", "aria-controls": panel.id });
    tab.addEventListener("click", () => chooseTab(name));
    return tab;
  }));
  byId("tabs").onkeydown = onMoves((_, moves) => {
    if (!moves) return;
    const tabs = [...byId("tabs").children].filter((tab) => !tab.hidden), at = tabs.indexOf(document.activeElement);
    const next = tabs[Number.isFinite(moves) ? (at + moves + tabs.length) % tabs.length : moves < 0 ? 0 : tabs.length - 1];
    next.focus();
    next.click();
  });
}

async function chooseExample(index) {
  const read = JSON.parse(new TextDecoder().decode(await unpack(data.examples[index].blob)));
  for (const { images } of [read, ...read.neighbours]) if (images) images.pixels = bytesOf(images.pixels);
  const isFirst = shown === null;
  shown = read;
  byId("kind").replaceChildren(...shown.kinds.map(({ name }, value) => element("option", name, { value })));
  if (isFirst) Object.assign(state, mostChanging(shown.kinds));
  state.kind = Math.min(state.kind, shown.kinds.length - 1);
  byId("kind").value = state.kind;
  for (const [name, [, isThere]] of Object.entries(TABS)) byId(`${name}-tab`).hidden = !isThere();
  await chooseTab(byId(`${state.tab}-tab`).hidden ? "heads" : state.tab);
}

async function pageView() {
  const isNarrow = matchMedia("(max-width: 60rem)"), main = document.querySelector("main");
  attention = valueMap(byId("attention"), { room: () => main.clientWidth - (isNarrow.matches ? 0 : 290), linesChanged() {} });
  document.querySelector(".lines-toggle").before(byId("zero"), " ");
  makeTabs();
  byId("example").append(...data.examples.map(({ title }, value) => element("option", title, { value })));
  byId("example").addEventListener("change", ({ target }) => chooseExample(Number(target.value)));
  byId("kind").addEventListener("change", ({ target }) => {
    Object.assign(state, mostChanging([shown.kinds[Number(target.value)]]));
    drawHeads();
  });
  byId("choices").addEventListener("submit", (event) => event.preventDefault());
  byId("zero").addEventListener("click", () => { state.zeroed = !state.zeroed; drawAnswer(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chooseTab(state.tab));
  await chooseExample(0);
}
