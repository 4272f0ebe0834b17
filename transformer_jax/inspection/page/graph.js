// An attribution graph: rows are layers, columns are positions. A chosen node shows its edges, and lists them.
const ABOUT = "Circles are features and logits, squares tokens, diamonds what the transcoders leave unexplained. An edge is what a node adds " +
  "to a feature or logit, with attention and norms fixed; edges below zero have another colour. A darker node has more influence.";
const STEP = 24, ROW = 84; // pixels between nodes of one place, and between rows

function graphView(parent, { title, nodes: given, edges: [sources, targets, weights], influence, score, positions, logits, features }) {
  const edges = sources.map((source, edge) => [source, targets[edge], weights[edge]]);
  const layers = Math.max(...given.map(([, layer]) => layer)), most = Math.max(...influence);
  const rows = ["tokens", ...Array.from({ length: layers }, (_, layer) => `layer ${layer}`), "logits"];
  const nodes = given.map(([kind, layer, position, which, size], index) => {
    const where = `at ${named(positions, position)}`, name = `${layer}.${which}`;
    const label = { token: `token ${where}`, error: `error of layer ${layer} ${where}`, logit: `logit “${visible(logits[which] ?? "")}”`,
      feature: `feature ${name} ${where}${features[name] ? `: ${features[name]}` : ""}` }[kind];
    const row = { token: 0, logit: layers + 1 }[kind] ?? layer + 1, share = influence[index] / most;
    const value = kind === "feature" || kind === "logit" ? `Value ${number(size)}; influence` : "Influence";
    return { kind, row, position, label, share, says: `${value} ${number(influence[index])}.` };
  });
  const { namespaceURI } = element("div", "", { innerHTML: "<svg></svg>" }).firstChild;
  const drawn = (tag, properties) => {
    const made = document.createElementNS(namespaceURI, tag);
    for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
    return made;
  };
  const places = new Map(); // nodes of a row and position, by both
  nodes.forEach(({ row, position }, index) => {
    const key = `${row} ${position}`;
    places.set(key, [...(places.get(key) ?? []), index]);
  });
  const widths = positions.map((name, position) => STEP * Math.max(2, visible(name).length / 3,
    ...rows.map((_, row) => (places.get(`${row} ${position}`) ?? []).length)));
  const starts = widths.map((_, position) => 90 + widths.slice(0, position).reduce((sum, width) => sum + width, 0));
  const width = starts.at(-1) + widths.at(-1) + 20, height = ROW * rows.length + 30;
  const levelOf = (row) => ROW * (rows.length - row) - ROW / 2;
  const picture = drawn("svg", { width, height, role: "group", "aria-label": "Graph; Tab moves between nodes" });
  rows.forEach((name, row) => {
    const label = drawn("text", { x: 4, y: levelOf(row) + 4, class: "axis" });
    label.textContent = name;
    picture.append(label);
  });
  positions.forEach((name, position) => {
    const label = drawn("text", { x: starts[position] + widths[position] / 2, y: height - 12, class: "axis", "text-anchor": "middle" });
    label.textContent = visible(name);
    picture.append(label);
  });
  const at = nodes.map(({ row, position }, index) => {
    const same = places.get(`${row} ${position}`);
    return [starts[position] + (widths[position] + STEP * (2 * same.indexOf(index) - same.length + 1)) / 2, levelOf(row)];
  });
  const largest = Math.max(1e-30, ...edges.map(([, , weight]) => Math.abs(weight)));
  const lines = edges.map(([source, target, weight]) => {
    const [[x, y], [u, v]] = [at[source], at[target]], middle = (y + v) / 2;
    const line = drawn("path", { d: `M${x} ${y}C${x} ${middle} ${u} ${middle} ${u} ${v}`, class: weight < 0 ? "edge negative" : "edge",
      "stroke-width": 0.5 + 4 * Math.abs(weight) / largest });
    picture.append(line);
    return line;
  });
  const details = element("div", "", { className: "details", "aria-live": "polite" });

  const listed = (name, end, chosen) => {
    const table = element("table"), head = element("tr"), other = 1 - end;
    head.append(element("th", name, { colSpan: 2 }));
    table.append(head);
    const own = edges.filter((edge) => edge[end] === chosen).sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]));
    table.hidden = !own.length;
    for (const edge of own) {
      const line = element("tr"), box = element("td"), button = element("button", nodes[edge[other]].label, { type: "button" });
      button.addEventListener("click", () => choose(edge[other]));
      box.append(button);
      line.append(box, element("td", number(edge[2])));
      table.append(line);
    }
    return table;
  };

  function choose(index) {
    lines.forEach((line, edge) => line.classList.toggle("on", edges[edge].slice(0, 2).includes(index)));
    shapes.forEach((shape, other) => shape.setAttribute("aria-pressed", String(other === index)));
    const { label, says } = nodes[index];
    details.replaceChildren(element("h2", label), element("p", says), listed("reads from", 1, index), listed("is read by", 0, index));
  }
  const shapes = nodes.map(({ kind, label, share }, index) => {
    const [x, y] = at[index];
    const shape = kind === "feature" || kind === "logit" ? drawn("circle", { cx: x, cy: y, r: 8 })
      : drawn("rect", { x: x - 7, y: y - 7, width: 14, height: 14, transform: kind === "error" ? `rotate(45 ${x} ${y})` : "" });
    const group = drawn("g", { tabindex: 0, role: "button", "aria-label": label, "aria-pressed": "false", class: kind });
    group.style.setProperty("--share", 0.15 + 0.85 * share);
    const hint = drawn("title", {});
    hint.textContent = label;
    group.append(hint, shape);
    group.addEventListener("click", () => choose(index));
    group.addEventListener("keydown", (event) => { if (["Enter", " "].includes(event.key)) { event.preventDefault(); choose(index); } });
    picture.append(group);
    return group;
  });
  const box = element("div", "", { className: "graph" });
  box.append(picture);
  parent.replaceChildren(element("h1", title), element("p", ABOUT + ` Replacement score of this graph: ${number(score)}.`, { className: "note" }), box, details);
  choose(nodes.length - 1);
}
