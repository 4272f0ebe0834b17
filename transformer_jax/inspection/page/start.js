// Draw the view of this file; in a notebook, adjust the frame to its height.
const VIEWS = { page: pageView, heads: headsView, tokens: tokensView, grid: gridView, graph: graphView };
if (!window.frameElement) document.documentElement.style.setProperty("--window", "100vh");
await VIEWS[data.view](document.querySelector("main"), data);
document.querySelector("main").setAttribute("aria-busy", "false");
if (window.frameElement) {
  new ResizeObserver(() => { frameElement.style.height = `${document.documentElement.offsetHeight + 2}px`; }).observe(document.body);
}
