// Draws the plots of a page with Plotly from the JSON in #data, whose content fit/picture.py and interactive.py explain.
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

  // A page that loads itself anew keeps the switches that are not as at first, where plots are zoomed to, and how far
  // down the reader is. The browser cannot keep that: the page is short until the plots are there.
  const remembered = `depthmup ${location.pathname}`;
  const before = JSON.parse(sessionStorage.getItem(remembered) || '{"changed": [], "zoomed": {}, "down": 0}');
  const changed = new Set(before.changed);
  const zoomed = before.zoomed;
  const idOf = (...words) => words.join(" "); // of a switch: plot, kind, value; of a panel: plot, names
  addEventListener("pagehide", () => {
    sessionStorage.setItem(remembered, JSON.stringify({ changed: [...changed], zoomed, down: scrollY }));
  });

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);

  // Ticks of a logarithmic axis: 0.1, 0.2, 0.5, 1 (D2); of a long one, powers of ten; of a short one, Plotly's.
  const axisOf = (title, scale, ends, ticks = []) => {
    const range = ends && (scale === "log" ? ends.map(Math.log10) : ends);
    const decades = range && scale === "log" ? range[1] - range[0] : 0;
    return {
      title: { text: title },
      zeroline: false,
      gridcolor: color("line"),
      exponentformat: "none", // 0.01, not 10m
      range,
      ...(scale === "log" && { type: "log", minorloglabels: "complete" }), // 0.2, not 2
      ...(decades > 0.7 && { dtick: decades < 2.2 ? "D2" : 1 }),
      ...(ticks.length && { tickvals: ticks, ticktext: ticks.map(String) }),
    };
  };
  const layoutOf = (x, y) => ({
    margin: { l: 56, r: 8, t: 28, b: 40 }, // the buttons are above the points
    modebar: { bgcolor: "rgba(0,0,0,0)", color: color("dim"), activecolor: color("text") },
    font: { family: "system-ui, sans-serif", size: 12, color: color("text") },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    hovermode: "closest",
    dragmode: touch ? false : "zoom", // a finger scrolls the page; the buttons zoom
    showlegend: false,
    xaxis: x,
    yaxis: y,
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true }, // of marks at the foot
  });
  const layoutOfPanel = (plot, { x, y, level }) => {
    const line = { color: "gray", width: 1, dash: "dot" };
    const shape = { type: "line", xref: "paper", x0: 0, x1: 1, y0: level, y1: level, line };
    const axes = [axisOf(plot.x, plot.scale, x, plot.ticks), axisOf(plot.y, "log", y)];
    return { ...layoutOf(...axes), shapes: level ? [shape] : [] };
  };

  // How Plotly draws the kinds of marks; depthmup/fit/marks.py has the same for Matplotlib.
  const SYMBOLS = ["circle", "square", "diamond", "triangle-down", "triangle-up", "pentagon", "star"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"]; // of sweeps
  const STYLES = {
    line: (ink, dash) => ({ mode: "lines+markers", line: { color: ink, width: 1.8, dash }, marker: { size: 4 } }),
    seeds: (ink) => ({ mode: "markers", marker: { color: ink, size: 4, opacity: 0.5 } }),
    best: (ink) => ({
      mode: "markers",
      marker: { color: ink, size: 14, symbol: "star", line: { color: color("text"), width: 1 } },
    }),
    edge: (ink) => ({ mode: "markers", marker: { symbol: "line-ns", size: 12, line: { color: ink, width: 2 } } }),
    optima: (ink, dash, place) => ({
      mode: "markers",
      marker: { color: ink, size: 8, symbol: SYMBOLS[place % SYMBOLS.length] },
    }),
    fit: (ink, dash) => ({ mode: "lines", line: { color: ink, width: 1, dash: dash === "solid" ? "dash" : dash } }),
    edges: (ink) => ({
      mode: "lines+markers",
      line: { color: ink, width: 1, dash: "dot" },
      marker: { symbol: "line-ew", size: 9, line: { color: ink, width: 1 } },
    }),
    none: (ink) => ({ mode: "markers", marker: { color: ink, size: 8, symbol: "x" } }),
    band: (ink) => ({ mode: "lines", fill: "toself", fillcolor: `${ink}2b`, line: { width: 0 }, hoverinfo: "skip" }),
  };

  function traceOf(plot, line, mark) {
    const letters = plot.switches.sweep.map(([letter]) => letter);
    const ink = plot.colors[dark.matches ? 1 : 0][line.place];
    const dash = DASHES[letters.indexOf(line.sweep) % DASHES.length];
    const head = plot.lines === "parameterization" ? "" : `${plot.lines.replace("_", " ")} ${line.name}`;
    const about = [line.sweep && `${line.sweep}:`, head, mark.about.length ? "%{text}" : "%{x:.4g}: %{y:.4g}"];
    const trace = {
      x: mark.x,
      y: mark.y,
      text: mark.about,
      hovertemplate: `${about.filter(Boolean).join("<br>")}<extra></extra>`,
      trials: mark.trials,
      meta: { kind: mark.kind, name: line.name, sweep: line.sweep },
      ...STYLES[mark.kind](ink, dash, line.place),
    };
    if (["edge", "none"].includes(mark.kind)) trace.yaxis = "y2";
    if (mark.kind === "band") {
      trace.x = [...mark.x, ...mark.x.toReversed()];
      trace.y = [...mark.high, ...mark.low.toReversed()];
    }
    if (mark.kind === "optima") {
      const array = mark.high.map((end, i) => end - mark.y[i]);
      const arrayminus = mark.low.map((end, i) => mark.y[i] - end);
      trace.error_y = { type: "data", symmetric: false, array, arrayminus, thickness: 1, width: 3 };
    }
    return trace;
  }
  const tracesOf = (plot, panel) => {
    const traces = panel.lines.flatMap((line) => line.marks.map((mark) => traceOf(plot, line, mark)));
    const isBand = ({ meta }) => meta.kind === "band"; // behind the others
    return [...traces.filter(isBand), ...traces.filter((trace) => !isBand(trace))];
  };

  // The frame of a panel, with its names and verdicts as text; its plot is painted when it comes into view.
  function framed(plot, panel, grid) {
    const box = make("div", grid, "", "panel");
    make("h3", box, Object.values(panel.names).filter(Boolean).join(", "));
    for (const [sweep, verdict, price] of panel.notes) {
      const note = make("p", box, sweep && `${sweep}: `);
      make("b", note, verdict, verdict.replaceAll(" ", "-"));
      note.append(price && `: ${price}`);
    }
    if (plot.lines === "parameterization") {
      for (const line of panel.lines) make("p", box, line.label);
    }
    return { panel, box, canvas: make("div", box, "", "canvas"), traces: null };
  }

  function draw(name, place) {
    const plot = plots[name];
    const switches = make("div", place, "", "switches");
    const grid = make("div", place, "", "panels");
    const panels = plot.panels.map((panel) => framed(plot, panel, grid));
    const isChanged = (kind, value) => changed.has(idOf(name, kind, value));
    const shows = ({ meta: { name, sweep, kind } }) =>
      !isChanged(plot.lines, name) && !isChanged("sweep", sweep) && (kind !== "seeds" || isChanged("seeds", "each"));
    const update = () => {
      for (const { panel, box, canvas, traces } of panels) {
        box.hidden = Object.entries(panel.names).some(([kind, value]) => isChanged(kind, value));
        if (traces && !box.hidden) Plotly.restyle(canvas, { visible: traces.map(shows) });
      }
    };
    const paint = (one) => {
      one.traces = tracesOf(plot, one.panel);
      const shown = one.traces.map((trace) => ({ ...trace, visible: shows(trace) }));
      return Plotly.react(one.canvas, shown, layoutOfPanel(plot, one.panel), config);
    };
    dark.addEventListener("change", () => panels.filter(({ traces }) => traces).forEach(paint));
    addSwitches(name, switches, update);
    const observer = new IntersectionObserver(
      (entries) => {
        for (const one of panels) {
          if (one.traces || !entries.some((entry) => entry.isIntersecting && entry.target === one.box)) continue;
          const id = idOf(name, ...Object.values(one.panel.names));
          paint(one).then(() => {
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

  // A checkbox for each name that has others beside it, and one for the points of single seeds, which are off at first.
  function addSwitches(name, parent, update) {
    const { switches, colors, main } = plots[name];
    const add = (kind, values, first) => {
      const set = make("fieldset", parent);
      make("legend", set, kind.replace("_", " "));
      for (const [value, place] of values) {
        const id = idOf(name, kind, value);
        const label = make("label", set);
        const box = make("input", label);
        box.type = "checkbox";
        box.checked = changed.has(id) !== first;
        box.onchange = () => {
          if (!changed.delete(id)) changed.add(id);
          update();
        };
        if (place !== null) make("i", label).style.background = `light-dark(${colors.map((inks) => inks[place])})`;
        label.append(value || "none");
      }
    };
    for (const [kind, values] of Object.entries(switches)) {
      if (values.length > 1) add(kind, values, true);
    }
    if (main) add("seeds", [["each", null]], false);
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
    const numbers = point.data.trials[point.pointIndex];
    if (numbers) show(numbers, numbers[0]);
  }

  // numbers: of the trials of a point; the settings and the learning curve of the chosen one stand out.
  function show(numbers, chosen) {
    const body = dialog.querySelector("div");
    body.textContent = "";
    const settings = Object.entries(trials.settings);
    const at = (setting, list) => setting[list][setting.of[chosen]];
    const ended = (i) => (trials.diverged[i] ? "diverged" : `loss ${trials.loss[i]}`);
    const buttons = make("p", body, "", "seeds");
    for (const i of numbers) {
      const seed = trials.settings.seed;
      const button = make("button", buttons, `${seed ? `seed ${seed.values[seed.of[i]]}: ` : ""}${ended(i)}`);
      button.disabled = i === chosen;
      button.onclick = () => show(numbers, i);
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
    const last = [...numbers.filter((i) => i !== chosen), chosen]; // drawn over the others
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
        line: { color: color(i === chosen ? "text" : "faint"), width: i === chosen ? 2 : 1 },
        hovertemplate: "step %{x}<br>training loss %{y:.4g}<extra></extra>",
      })),
      layoutOf(axisOf("step"), axisOf("training loss", "log")),
      config,
    );
  }

  // The page of a sweep that is going on: loads itself anew, but not under the reader's hands.
  function follow() {
    let touched = -Infinity;
    for (const event of ["pointermove", "pointerdown", "keydown", "wheel", "touchmove"]) {
      addEventListener(event, () => (touched = performance.now()), { passive: true });
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
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => (part.open = true)));
  document.documentElement.classList.add("live"); // from now on the plots stand in the place of the pictures
  history.scrollRestoration = "manual";
  if (performance.getEntriesByType("navigation")[0].type === "reload") scrollTo(0, before.down);
})();
