(() => {
  "use strict";
  const all = selector => [...document.querySelectorAll(selector)];
  const items = all("#list > li"), find = id => document.getElementById(id);
  if (!items.length) { return; }
  function show() {
    const verdicts = all(".verdict").filter(box => box.checked).map(box => box.value);
    const wanted = find("search").value.trim().toLowerCase(), model = find("model");
    let shown = 0;
    items.forEach(item => {
      const fits = verdicts.includes(item.dataset.verdict) && (!model || item.dataset.model === model.value) &&
        (!wanted || item.textContent.toLowerCase().includes(wanted));
      item.hidden = !fits;
      shown += fits;
    });
    find("status").textContent = shown + " of " + items.length + " decisions of this page";
  }
  all(".verdict").forEach(box => box.addEventListener("change", show));
  ["search", "model"].filter(find).forEach(id => find(id).addEventListener("input", show));
  window.addEventListener("beforeprint", () => items.forEach(item => { item.querySelector("details").open = !item.hidden; }));
  all(".controls").forEach(node => { node.hidden = false; });
  show();
})();
