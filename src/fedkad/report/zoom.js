// Drag across a chart to enlarge that part, double-click to see all of it again.
"use strict";
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
  86400, 172800, 604800, 1209600, 2419200, 7862400, 15724800, 31536000];
const MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");

function timeLabel(seconds, step) {
  const time = new Date(1000 * seconds), two = (number) => String(number).padStart(2, "0");
  const month = MONTHS[time.getUTCMonth()];
  if (step >= 2419200) return `${month} ${time.getUTCFullYear()}`;
  if (step >= 86400 || seconds % 86400 === 0) return `${time.getUTCDate()} ${month}`;
  const text = `${two(time.getUTCHours())}:${two(time.getUTCMinutes())}`;
  return step < 60 ? `${text}:${two(time.getUTCSeconds())}` : text;
}

function ticksBetween(low, high, dated) {
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const steps = dated ? STEPS : [1, 2, 5, 10].map((digit) => digit * power);
  const step = steps.find((size) => size >= rough) ?? steps.at(-1), ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) {
    ticks.push([k * step, dated ? timeLabel(k * step, step) : String(Number((k * step).toPrecision(6)))]);
  }
  return ticks;
}

for (const chart of document.querySelectorAll("svg.chart")) {
  const plots = [...chart.querySelectorAll("svg.plot")], dated = chart.dataset.clock === "1";
  const first = Number(chart.dataset.first), last = Number(chart.dataset.last);
  const marks = [...chart.querySelectorAll(".mark")].map((mark) => [mark, parseFloat(mark.getAttribute("x")) / 100]);
  let shown = [0, 1], from = null, box = null;

  function place(text, share) {
    text.setAttribute("x", `${100 * share}%`);
    text.setAttribute("text-anchor", share < 0.03 ? "start" : share > 0.97 ? "end" : "middle");
    text.style.visibility = share < 0 || share > 1 ? "hidden" : "visible";
  }

  function show(low, high) {
    shown = [low, high];
    for (const plot of plots) plot.setAttribute("viewBox", `${10000 * low} 0 ${10000 * (high - low)} 1000`);
    for (const [mark, share] of marks) place(mark, (share - low) / (high - low));
    const model = chart.querySelector(".tick");
    if (!model) return;
    const at = (share) => first + share * (last - first), ticks = ticksBetween(at(low), at(high), dated);
    for (const old of [...chart.querySelectorAll(".tick")].slice(1)) old.remove();
    ticks.forEach(([value, text], k) => {
      const tick = k ? chart.appendChild(model.cloneNode()) : model;
      tick.textContent = text;
      place(tick, (value - at(low)) / (at(high) - at(low)));
    });
    if (!ticks.length) model.textContent = "";
  }

  const shareOf = (event) => {
    const whole = chart.getBoundingClientRect();
    return Math.min(Math.max((event.clientX - whole.left) / whole.width, 0), 1);
  };
  chart.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    from = shareOf(event);
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const to = shareOf(event), [left, right] = [Math.min(from, to), Math.max(from, to)];
    if (!box) {
      box = chart.appendChild(document.createElementNS(chart.namespaceURI, "rect"));
      box.setAttribute("height", "100%");
      box.setAttribute("style", "fill:var(--score);opacity:.15");
    }
    box.setAttribute("x", `${100 * left}%`);
    box.setAttribute("width", `${100 * (right - left)}%`);
  });
  const stop = (event) => {
    if (from === null) return;
    const to = shareOf(event), [left, right] = [Math.min(from, to), Math.max(from, to)], width = shown[1] - shown[0];
    from = null;
    box?.remove();
    box = null;
    if (event.type === "pointerup" && right - left > 0.02 && width * (right - left) > 1e-4) {
      show(shown[0] + left * width, shown[0] + right * width);
    }
  };
  chart.addEventListener("pointerup", stop);
  chart.addEventListener("pointercancel", stop);
  chart.addEventListener("dblclick", () => show(0, 1));
}
