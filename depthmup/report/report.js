// Draws the plots of a page with Plotly, from the JSON in #data (depthmup/report/interactive.py says what it holds).
// Names of the user are written as text, never as HTML, and never into a plot.
"use strict";
(() => {
  const { plots, trials, written } = JSON.parse(document.getElementById("data").textContent);
  const RELOAD = 10_000; // milliseconds without a movement of the reader, after which the page loads itself anew
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = {
    displaylogo: false,
    displayModeBar: touch ? true : "hover",
    modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]],
    responsive: true,
  };

  const make = (tag, parent, text = "", className = "") => {
    const node = parent.appendChild(document.createElement(tag));
    node.textContent = text;
    if (className) node.className = className;
    return node;
  };

  // What a page that loads itself anew finds again: the switches that are not as at first, where plots are zoomed to, and
  // how far down the reader is. The browser cannot keep that: the page is short until the plots are there.
  const remembered = `depthmup ${location.pathname}`;
  const before = JSON.parse(sessionStorage.getItem(remembered) || '{"changed": [], "zoomed": {}, "down": 0}');
  const changed = new Set(before.changed);
  const zoomed = before.zoomed;
  addEventListener("pagehide", () => {
    sessionStorage.setItem(remembered, JSON.stringify({ changed: [...changed], zoomed, down: scrollY }));
  });

  const layoutOf = (plot, panel) => ({
    margin: { l: 52, r: 8, t: 28, b: 38 },
    font: { family: "system-ui, sans-serif", size: 11 },
    hovermode: "closest",
    dragmode: touch ? false : "zoom", // a finger scrolls the page; the buttons zoom
    showlegend: false,
    shapes: panel.shapes,
    xaxis: { ...plot.x, ...panel.x, title: { text: plot.x.title }, zeroline: false },
    yaxis: { ...plot.y, title: { text: plot.y.title }, zeroline: false, minorloglabels: "complete" }, // 0.2, not 2
  });

  function draw(name, place) {
    const plot = plots[name];
    const switches = make("div", place, "", "switches");
    const grid = make("div", place, "", "panels");
    const isOff = (kind, value) => changed.has(`${name} ${kind} ${value}`);
    const seedsOn = () => changed.has(`${name} seeds`); // at first they are off
    const shows = ({ meta }) =>
      ["size", "sweep", "parameterization"].every((kind) => !isOff(kind, meta[kind])) &&
      (meta.kind !== "seeds" || seedsOn());

    const panels = plot.panels.map((panel) => {
      const box = make("div", grid, "", "panel");
      make("h3", box, Object.values(panel.names).filter(Boolean).join(", "));
      for (const [sweep, words, color] of panel.says) {
        make("p", box, sweep ? `${sweep}: ${words}` : words).style.color = color;
      }
      return { panel, box, canvas: make("div", box, "", "canvas"), drawn: false };
    });
    const update = () => {
      for (const { panel, box, canvas, drawn } of panels) {
        box.hidden = Object.entries(panel.names).some(([kind, value]) => isOff(kind, value));
        if (drawn && !box.hidden) Plotly.restyle(canvas, { visible: panel.traces.map(shows) });
      }
    };
    const checkbox = (parent, words, mark, color, on) => {
      const label = make("label", parent);
      const box = make("input", label);
      box.type = "checkbox";
      box.checked = on;
      box.onchange = () => {
        if (!changed.delete(mark)) changed.add(mark);
        update();
      };
      if (color) make("i", label).style.background = color;
      label.append(words);
    };
    const group = (kind, title, values) => {
      if (values.length < 2) return;
      const set = make("fieldset", switches);
      make("legend", set, title);
      for (const [value, color] of values) {
        checkbox(set, value || "none", `${name} ${kind} ${value}`, color, !isOff(kind, value));
      }
    };
    for (const kind of Object.keys(plot.panels[0].names)) {
      group(kind, kind, [...new Set(plot.panels.map((panel) => panel.names[kind]))].map((value) => [value]));
    }
    for (const [kind, values] of Object.entries(plot.switches)) group(kind, kind === "size" ? plot.title : kind, values);
    if (plot.seeds) {
      const set = make("fieldset", switches);
      make("legend", set, "seeds");
      checkbox(set, "each", `${name} seeds`, "", seedsOn());
    }

    const observer = new IntersectionObserver(
      (seen) => {
        for (const one of panels) {
          if (one.drawn || !seen.some((entry) => entry.isIntersecting && entry.target === one.box)) continue;
          one.drawn = true;
          const traces = one.panel.traces.map((trace) => ({ ...trace, visible: shows(trace) }));
          const layout = layoutOf(plot, one.panel);
          const id = [name, ...Object.values(one.panel.names)].join(" ");
          Plotly.newPlot(one.canvas, traces, layout, config).then(() => {
            if (zoomed[id]) Plotly.relayout(one.canvas, zoomed[id]);
            one.canvas.on("plotly_click", ({ points }) => clicked(points[0]));
            one.canvas.on("plotly_relayout", () => {
              const { xaxis, yaxis } = one.canvas.layout;
              zoomed[id] = { "xaxis.range": [...xaxis.range], "yaxis.range": [...yaxis.range] };
            });
          });
        }
      },
      { rootMargin: "300px" }, // a plot is drawn before it comes into view, so that a page of many opens at once
    );
    for (const { box } of panels) observer.observe(box);
    update();
  }

  // A click on a point: the trials that it stands for.
  const dialog = document.getElementById("trial");
  let packed = null; // all learning curves, decoded at the first click

  function learningCurve(i) {
    if (!packed) {
      const bytes = Uint8Array.from(atob(trials.curves), (letter) => letter.charCodeAt(0));
      packed = new DataView(bytes.buffer);
    }
    const y = [];
    for (let j = 0; j < trials.points && packed.byteLength; j++) {
      const value = packed.getInt16(2 * (i * trials.points + j), true);
      if (value !== trials.missing) y.push(2 ** (value / trials.scale));
    }
    return { x: y.map((_, j) => Math.round((trials.steps[i] * (j + 1)) / y.length)), y };
  }

  function clicked(point) {
    const found = trials && point.data.trials ? point.data.trials[point.pointIndex] : [];
    if (found.length) show(found, found[0]);
  }

  function show(found, chosen) {
    const body = dialog.querySelector("div");
    body.textContent = "";
    const settings = Object.entries(trials.settings);
    const at = (setting, list) => setting[list][setting.of[chosen]];
    const ended = (i) => (trials.diverged[i] ? "diverged" : `loss ${trials.loss[i]}`);
    const buttons = make("p", body, "", "seeds");
    for (const i of found) {
      const seed = trials.settings.seed;
      const button = make("button", buttons, `${seed ? `seed ${seed.values[seed.of[i]]}: ` : ""}${ended(i)}`);
      button.disabled = i === chosen;
      button.onclick = () => show(found, i);
    }
    const table = make("table", body);
    for (const [key, setting] of settings) {
      const row = make("tr", table);
      make("th", row, key);
      make("td", row, at(setting, "values"));
    }
    const canvas = make("div", body, "", "canvas");
    make("p", body, "This trial alone:");
    const command = [trials.command, ...settings.map(([, setting]) => at(setting, "flags"))].filter(Boolean).join(" ");
    make("pre", body, command);
    const copy = make("button", body, "copy");
    copy.onclick = () => navigator.clipboard.writeText(command).then(() => (copy.textContent = "copied"));
    if (!dialog.open) dialog.showModal();
    const last = [...found.filter((i) => i !== chosen), chosen]; // drawn over the others
    const lines = last.map((i) => ({ i, ...learningCurve(i) })).filter(({ y }) => y.length);
    if (!lines.length) {
      canvas.className = "";
      canvas.textContent = "This trial has no learning curve.";
      return;
    }
    Plotly.newPlot(
      canvas,
      lines.map(({ i, x, y }) => ({
        x,
        y,
        mode: "lines",
        line: { color: i === chosen ? "#1f2328" : "#b6bcc4", width: i === chosen ? 2 : 1 },
        hovertemplate: "step %{x}<br>training loss %{y:.4g}<extra></extra>",
      })),
      layoutOf({ x: { title: "step" }, y: { title: "training loss", type: "log" } }, {}),
      config,
    );
  }

  // The page of a sweep that is going on: loads itself anew, but not under the reader's hands.
  function follow() {
    let touched = -Infinity;
    for (const what of ["pointermove", "pointerdown", "keydown", "wheel", "touchmove"]) {
      addEventListener(what, () => (touched = performance.now()), { passive: true });
    }
    const note = document.getElementById("written");
    const tick = () => {
      const ago = Math.max(0, Math.round(Date.now() / 1000 - written));
      const minutes = Math.floor(ago / 60);
      note.textContent = `written ${minutes ? `${minutes} min` : `${ago} s`} ago; this page follows the sweep`;
      if (minutes > 4) note.textContent += ", unless it has been stopped: then the same command goes on";
      const idle = performance.now() - Math.max(touched, 0);
      if (idle > RELOAD && !dialog.open && document.visibilityState === "visible") location.reload();
    };
    tick(); // now, since what is below the note must not move later
    setInterval(tick, 1000);
  }

  for (const place of document.querySelectorAll("[data-plot]")) {
    if (plots[place.dataset.plot]) draw(place.dataset.plot, place);
  }
  if (written) follow();
  document.documentElement.classList.add("live"); // from now on the plots stand in the place of the pictures
  history.scrollRestoration = "manual";
  if (performance.getEntriesByType("navigation")[0].type === "reload") scrollTo(0, before.down);
})();
