// Inspects each framed page from outside and writes down the findings.

function channels(color) {
  const parts = color.match(/[\d.]+/g).map(Number);
  return { rgb: parts.slice(0, 3), alpha: parts.length > 3 ? parts[3] : 1 };
}

function luminance(rgb) {
  const [r, g, b] = rgb.map((c) => { const v = c / 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one, other) {
  const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}

function background(window, element) {
  for (let at = element; at; at = at.parentElement) {
    const found = channels(window.getComputedStyle(at).backgroundColor);
    if (found.alpha > 0.99) return found.rgb;
  }
  return [255, 255, 255];
}

// The text that is hardest to read, with its contrast as defined by WCAG 2.
function faintest(window, document) {
  let worst = { ratio: 21, text: "" };
  for (const element of document.body.querySelectorAll("*")) {
    const text = [...element.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join(" ").trim();
    if (!text || element.closest("svg") || !element.getClientRects().length) continue;
    const ratio = contrast(channels(window.getComputedStyle(element).color).rgb, background(window, element));
    if (ratio < worst.ratio) worst = { ratio, text };
  }
  return worst;
}

// Elements that overflow on the right and are not inside a scrollable element.
function outside(document) {
  const limit = document.documentElement.clientWidth + 1;
  return [...document.body.querySelectorAll("*")]
    .filter((e) => e.getBoundingClientRect().right > limit && !e.closest(".wide, pre"))
    .map((e) => e.tagName + "." + e.getAttribute("class"));
}

// Code whose lines are wider than its block.
function unwrapped(document) {
  return [...document.querySelectorAll("pre")].filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent.slice(0, 60));
}

// Texts in the dataflow chart that are wider than their box.
function spilled(document) {
  return [...document.querySelectorAll("g.box")].flatMap((box) => {
    const around = box.querySelector("rect").getBBox();
    return [...box.querySelectorAll("text")]
      .filter((text) => text.getBBox().x + text.getBBox().width > around.x + around.width)
      .map((text) => text.textContent);
  });
}

function seen(frame) {
  const window = frame.contentWindow, document = frame.contentDocument, root = document.documentElement;
  const all = [...document.querySelectorAll("*")];
  return {
    title: document.title,
    heading: document.querySelector("h1")?.innerText ?? "",
    text: document.body.innerText,
    mode: document.compatMode,
    sections: [...document.querySelectorAll("section")].filter((s) => s.getBoundingClientRect().height > 30).map((s) => s.id),
    scripts: document.scripts.length,
    handlers: all.filter((e) => [...e.attributes].some((a) => a.name.startsWith("on"))).length,
    tags: all.map((e) => e.tagName.toLowerCase()),
    resources: window.performance.getEntriesByType("resource").map((e) => e.name),
    width: root.clientWidth,
    scrolled: root.scrollWidth,
    outside: outside(document),
    unwrapped: unwrapped(document),
    spilled: spilled(document),
    hidden: [...document.querySelectorAll("#causes td")].filter((e) => e.getBoundingClientRect().right > root.clientWidth).map((e) => e.textContent),
    labels: [...document.querySelectorAll(".chart .tick")].map((e) => e.getBoundingClientRect().height),
    drawings: [...document.querySelectorAll("svg")].map((e) => ({ width: e.getBoundingClientRect().width, height: e.getBoundingClientRect().height })),
    background: window.getComputedStyle(root).backgroundColor,
    faintest: faintest(window, document),
    executed: top.executed.includes(frame.name),
  };
}

window.addEventListener("load", () => setTimeout(() => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) found[frame.name] = seen(frame);
  document.getElementById("seen").textContent = "LOOKED[" + JSON.stringify(found) + "]LOOKED";
}, 500));
