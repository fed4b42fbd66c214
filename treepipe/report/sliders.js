"use strict";
// Shows the figures of a grid at the place where the reader's sliders stand, best first.
for (const form of document.querySelectorAll("form[data-figures]")) {
  const { inputs, plans, less, values } = JSON.parse(form.dataset.figures);
  const sliders = [...form.querySelectorAll("input")];
  const told = [...form.querySelectorAll("output")];
  const cell = (text, kind) => {
    const made = document.createElement("td");
    made.textContent = text;
    made.className = kind;
    return made;
  };
  const show = () => {
    let place = 0;
    inputs.forEach(({ levels }, index) => {
      const level = Number(sliders[index].value);
      place = place * levels.length + level;
      told[index].textContent = levels[level];
      sliders[index].setAttribute("aria-valuetext", levels[level]);
    });
    const found = plans.map((plan, index) => [plan, values[place][index]]);
    found.sort(([, a], [, b]) => (less ? a - b : b - a));
    const best = found[0][1];
    form.querySelector("tbody").replaceChildren(...found.map(([plan, value], index) => {
      const row = document.createElement("tr");
      const share = (value / best - 1) * 100;
      const against = index === 0 || !best ? "" : `${share < 0 ? "" : "+"}${share.toFixed(1)}%`;
      row.append(cell(index + 1, "number"), cell(plan, "words long"),
        cell(Number(value.toPrecision(4)), "number"), cell(against, "number"));
      return row;
    }));
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  show();
}
