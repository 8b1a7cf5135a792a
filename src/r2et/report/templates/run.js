(() => {
  "use strict";
  const all = selector => [...document.querySelectorAll(selector)];
  const decisions = all("article.decision"), buttons = all(".tabs button"), beside = document.getElementById("beside");
  if (!decisions.length) { return; }
  function show(shown) {
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(place === shown)));
    decisions.forEach((decision, place) => {
      decision.classList.toggle("shown", place === shown);
      decision.querySelectorAll(".panel").forEach((panel, number) => {
        panel.classList.toggle("shown", number === 0 || !beside || panel.dataset.method === beside.value);
      });
    });
  }
  buttons.forEach((button, place) => button.addEventListener("click", () => show(place)));
  if (beside) { beside.addEventListener("change", () => show(decisions.findIndex(each => each.classList.contains("shown")))); }
  document.querySelector(".controls").hidden = false;
  document.documentElement.classList.add("js");
  show(0);
})();
