// Values under the pointer, or with the arrow keys, for each svg with data-curves.
(() => {
  const charts = new WeakMap();
  const chart = (target) => target instanceof Element ? target.closest("svg[data-curves]") : null;

  function read(svg) {
    if (!charts.has(svg)) {
      const curves = JSON.parse(svg.dataset.curves);
      const steps = new Map(curves.flatMap((c) => c.points.map((p) => [p[0], p[2]])));
      charts.set(svg, { curves, steps: [...steps].sort((a, b) => a[0] - b[0]), at: -1 });
    }
    return charts.get(svg);
  }

  function show(svg, at) {
    const known = read(svg);
    known.at = Math.max(0, Math.min(known.steps.length - 1, at));
    const [step, x] = known.steps[known.at];
    const box = svg.parentElement.querySelector(".chart-values");
    box.replaceChildren(`step ${step.toLocaleString("en")}`);
    for (const curve of known.curves) {
      const near = curve.points.reduce((a, b) => Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a);
      const row = document.createElement("div");
      const dot = document.createElement("i");
      dot.style.background = curve.colour;
      const where = near[0] === step ? "" : ` at ${near[0].toLocaleString("en")}`;
      row.append(dot, `${curve.label ? curve.label + ": " : ""}${near[1]}${where}`);
      box.append(row);
    }
    const cursor = svg.querySelector(".chart-cursor");
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    const width = svg.clientWidth;
    const place = (x / svg.viewBox.baseVal.width) * width;
    const left = place < width / 2 ? place + 10 : place - box.offsetWidth - 10;
    box.style.left = `${Math.max(0, Math.min(left, width - box.offsetWidth))}px`;
    box.style.visibility = cursor.style.visibility = "visible";
  }

  function hide(svg) {
    for (const part of svg.parentElement.querySelectorAll(".chart-values, .chart-cursor"))
      part.style.visibility = "hidden";
  }

  function follow(event) {
    const svg = chart(event.target);
    if (!svg) return;
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const distances = read(svg).steps.map((step) => Math.abs(step[1] - x));
    show(svg, distances.indexOf(Math.min(...distances)));
  }

  document.addEventListener("pointermove", follow);
  document.addEventListener("pointerdown", follow);
  document.addEventListener("pointerout", (event) => {
    const svg = chart(event.target);
    if (svg && chart(event.relatedTarget) !== svg) hide(svg);
  });
  document.addEventListener("focusout", (event) => chart(event.target) && hide(event.target));
  document.addEventListener("keydown", (event) => {
    const svg = chart(event.target);
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!svg || !move) return;
    event.preventDefault();
    show(svg, read(svg).at + move);
  });
})();
