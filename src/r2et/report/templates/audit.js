(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  if (!data.row.length) { return; }
  const VERDICTS = ["certified", "undetermined", "broken"], SIGNS = ["✓", "?", "✕"], PAGE = 100;
  const find = id => document.getElementById(id);
  const all = selector => [...document.querySelectorAll(selector)];
  const rows = data.row.map((_, i) => i);
  const lowerNames = data.names.map(name => name.toLowerCase());
  const drawings = new Map(all(".drawing").map(node => [Number(node.dataset.i), node]));
  const now = { length: data.tolerance, page: 0, order: [], open: new Set(), printing: false };

  // Words come from the data and only ever go in as text.
  function make(tag, look, ...inside) {
    const node = document.createElement(tag);
    if (look) { node.className = look; }
    node.append(...inside);
    return node;
  }
  function draw(tag, settings, ...inside) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    Object.entries(settings).forEach(([name, value]) => node.setAttribute(name, value));
    node.append(...inside);
    return node;
  }

  // Numbers as in the part of the page that needs no script.
  function decimals(value) {
    let found = 2, bound = 1;
    while (Math.abs(value) < bound && found < 12) { bound /= 10; found += 1; }
    return found;
  }
  const fixed = (value, places) => value.toFixed(places).replace(/\.?0+$/, "");
  function rounded(value, round, slack) {
    if (!value) { return "0"; }
    const places = decimals(value), scale = Math.pow(10, places);
    return fixed(round(value * scale + slack) / scale, places);
  }
  const down = value => rounded(value, Math.floor, 1e-9);
  const up = value => rounded(value, Math.ceil, -1e-9);
  const short = value => value ? fixed(value, decimals(value)) : "0";
  const percent = value => (100 * value + 1e-9).toFixed(1) + "\u00a0%";
  const grouped = value => String(value).replace(/\B(?=(\d{3})+$)/g, ",");
  function share(count, total) {
    if (!total) { return "–"; }
    if (count === 0 || count === total) { return count ? "100\u00a0%" : "0\u00a0%"; }
    const text = (100 * count / total).toFixed(1);
    return ({ "0.0": "under 0.1", "100.0": "over 99.9" }[text] || text) + "\u00a0%";
  }

  function verdictOf(i) {
    if (now.length === data.tolerance) { return data.verdict[i]; }
    if (data.unbounded[i] || data.proved[i] >= now.length) { return 0; }
    return data.broken[i] !== null && data.broken[i] <= now.length ? 2 : 1;
  }

  // One decision.
  function unpacked(flat) {
    const found = [];
    for (let at = 1; at < flat.length; at += 3) {
      found.push({ name: flat[at], value: data.values[flat[at + 1]], score: flat[at + 2], side: flat[0][(at - 1) / 3] === "+" ? "for" : "against" });
    }
    return found;
  }
  function ranked(reasons, largest, moved, mark) {
    const list = make("ol", reasons.length > 12 ? "ranked long" : "ranked");
    if (reasons.length > 12) { list.tabIndex = 0; }
    reasons.forEach((each, place) => {
      const item = make("li", moved.includes(each.name) ? "moved" : "",
        make("span", "place", String(place + 1)), make("span", "reason", data.names[each.name] + " ", make("span", "value", each.value)));
      if (moved.includes(each.name)) { item.append(make("span", "move", mark)); }
      item.append(make("span", "side", each.side + " " + short(each.score)),
        draw("svg", { class: "bar " + each.side, "aria-hidden": "true" }, draw("rect", { width: Math.round(100 * each.score / largest) + "%", height: "100%" })));
      list.append(item);
    });
    return list;
  }
  function changes(flat) {
    const body = make("tbody");
    for (let at = 0; at < flat.length; at += 3) {
      const name = make("th", "", data.names[flat[at]]);
      name.scope = "row";
      body.append(make("tr", "", name, make("td", "", data.values[flat[at + 1]] + " ", make("span", "to", "→ " + data.values[flat[at + 2]]))));
    }
    return make("table", "values", body);
  }
  function search(i) {
    if (data.broken[i] !== null) { return "the shortest change found that replaces a reason has length " + up(data.broken[i]); }
    if (!data.attacked) { return "nobody searched for a change that replaces a reason"; }
    return "no change up to " + data.searched + " that replaces a reason was found";
  }
  function says(i) {
    const verdict = verdictOf(i);
    if (verdict === 0) { return "Proved: no change up to " + now.length + " replaces a reason."; }
    if (verdict === 2) { return "A change of length " + up(data.broken[i]) + " replaces a reason" + (data.smallest[i] ? ", and no shorter one does (proved)" : "") + "."; }
    return "Open at " + now.length + ": proved only up to " + down(data.proved[i]) + ", and " + search(i) + ".";
  }
  function facts(i) {
    const found = [["Predicted", data.classes[data.prediction[i]] + ", " + percent(data.probability[i])]];
    if (data.models.length > 1) { found.unshift(["Model", data.models[data.model[i]]]); }
    if (data.label[i] !== null) { found.push(["In the data", data.classes[data.label[i]]]); }
    if (data.subgroup[i].length) { found.push(["Group", data.subgroup[i].map(pair => data.groups[pair].join(": ")).join(", ")]); }
    found.push(["Proved", data.unbounded[i] ? "these reasons stay under changes of any length" : "these reasons stay up to " + down(data.proved[i])]);
    if (data.order[i] !== null) { found.push(["Their order", "stays up to " + down(data.order[i])]); }
    found.push(["Search", search(i)]);
    found.push(["At " + data.tolerance, data.ways[data.decided[i]]]);
    if (data.weakest[i].length) { found.push(["Weakest pair", data.names[data.weakest[i][0]] + " may be the first to give way, to " + data.names[data.weakest[i][1]]]); }
    return make("dl", "facts", ...found.flatMap(([name, words]) => [make("dt", "", name), make("dd", "", words)]));
  }
  function keptTable(i) {
    const line = (tag, words, cells) => {
      const head = make("th", "", words);
      head.scope = tag === "th" ? "col" : "row";
      return make("tr", "", head, ...cells.map(cell => make(tag, "", String(cell))));
    };
    const body = make("tbody", "", line("td", "at least stay (proved)", data.kept[i]));
    if (data.atMost[i]) { body.append(line("td", "at most stay (found)", data.atMost[i])); }
    return make("div", "scroll", make("table", "kept", make("thead", "", line("th", "Of " + data.k + ", within", data.epsilons)), body));
  }
  function panel(i) {
    const counter = data.counter[i], before = unpacked(data.reasons[i]);
    const [probability, left, entered, moved, reasons] = counter || [0, [], [], [], [""]], after = unpacked(reasons);
    const largest = Math.max(...before.concat(after).map(each => each.score)) || 1;
    const prediction = data.classes[data.prediction[i]];
    const parts = make("div", "parts", make("section", "",
      make("h3", "", "Reasons for “" + prediction + "”, the strongest first"), ranked(before, largest, left, "✕ leaves")));
    if (counter) {
      const change = make("section", "", make("h3", "", "The change: a counter-example"),
        make("p", "", "Length " + up(data.broken[i]) + ". The prediction stays " + prediction + ": "
          + percent(data.probability[i]) + " → " + percent(probability) + "."), changes(moved.slice(0, 24)));
      if (moved.length > 24) {
        change.append(make("details", "more", make("summary", "", moved.length / 3 - 8 + " more inputs change"), changes(moved.slice(24))));
      }
      parts.append(make("section", "", make("h3", "", "Reasons after the change"), ranked(after, largest, entered, "✚ enters")), change);
    }
    const far = make("section", "", make("h3", "", "How far they hold"), facts(i));
    if (data.kept[i].length) { far.append(keptTable(i)); }
    parts.append(far);
    return make("div", "panel", make("p", "says", says(i)), ...(drawings.has(i) ? [drawings.get(i).cloneNode(true)] : []), parts);
  }
  const across = length => Math.min(100, Math.round(1000 * length / data.longest) / 10);
  function line(i) {
    const verdict = verdictOf(i), who = make("span", "who", "Row " + data.row[i]);
    if (data.id[i] !== null) { who.append(" ", make("span", "id", String(data.id[i]))); }
    const proved = data.unbounded[i] ? 100 : across(data.proved[i]), broken = data.broken[i] === null ? 100 : across(data.broken[i]);
    const names = unpacked(data.reasons[i]).slice(0, 3).map(each => data.names[each.name]).join(", ");
    const summary = make("summary", "", make("span", "badge " + VERDICTS[verdict], SIGNS[verdict] + " " + VERDICTS[verdict]), who,
      make("span", "what", data.classes[data.prediction[i]] + " " + percent(data.probability[i])),
      draw("svg", { class: "track", "aria-hidden": "true" },
        draw("rect", { class: "certified", width: proved + "%", height: "100%" }),
        draw("rect", { class: "broken", x: broken + "%", width: 100 - broken + "%", height: "100%" }),
        draw("line", { x1: across(now.length) + "%", x2: across(now.length) + "%", y1: "-20%", y2: "120%" })),
      make("span", "far", "proved " + (data.unbounded[i] ? "any length" : down(data.proved[i])) + " · broken " + (data.broken[i] === null ? "–" : up(data.broken[i]))),
      make("span", "why", names));
    const details = make("details", "", summary);
    details.dataset.i = i;
    if (now.open.has(i)) { unfold(details); }
    details.addEventListener("toggle", () => {
      if (details.open) { unfold(details); }
      if (!now.printing) { now.open[details.open ? "add" : "delete"](i); }
    });
    return make("li", "", details);
  }
  function unfold(details) {
    if (details.children.length === 1) { details.append(panel(Number(details.dataset.i))); }
    details.open = true;
  }

  // The list: which decisions, in which order, which hundred of them.
  const KEYS = {
    row: i => data.row[i], probability: i => data.probability[i],
    proved: i => data.unbounded[i] ? Infinity : data.proved[i], broken: i => data.broken[i],
  };
  function arrange() {
    const chosen = find("sort").value, key = KEYS[chosen.replace("-", "")], falling = chosen.startsWith("-") ? -1 : 1;
    // Where there is no number, the decision goes last, whichever way the others run.
    const missing = i => Number(key(i) === null);
    now.order = rows.slice().sort((a, b) => missing(a) - missing(b) || (key(a) === key(b) ? a - b : falling * (key(a) < key(b) ? -1 : 1)));
  }
  function fitting() {
    const model = find("model") ? Number(find("model").value) : 0, prediction = find("prediction").value, group = find("group").value;
    const asked = find("search").value.trim().toLowerCase();
    const named = new Set(data.names.keys());
    lowerNames.forEach((name, at) => { if (!name.includes(asked)) { named.delete(at); } });
    const found = i => !asked || String(data.row[i]) === asked || (data.id[i] !== null && String(data.id[i]).toLowerCase().includes(asked))
      || data.reasons[i].some((name, at) => at % 3 === 1 && named.has(name)) || (data.counter[i] !== null && data.counter[i][2].some(name => named.has(name)));
    return now.order.filter(i => data.model[i] === model && (prediction === "" || data.prediction[i] === Number(prediction))
      && (group === "" || data.subgroup[i].includes(Number(group))) && found(i));
  }
  function show() {
    const fit = fitting(), counts = [0, 0, 0], wanted = all(".verdict").map(box => box.checked);
    fit.forEach(i => { counts[verdictOf(i)] += 1; });
    all(".chip .number").forEach((node, verdict) => { node.textContent = grouped(counts[verdict]); });
    const shown = fit.filter(i => wanted[verdictOf(i)]), last = Math.max(0, Math.ceil(shown.length / PAGE) - 1);
    now.page = Math.min(now.page, last);
    const first = now.page * PAGE, page = shown.slice(first, first + PAGE);
    find("list").replaceChildren(...(page.length ? page.map(line) : [make("li", "none", "No decision fits these filters.")]));
    find("status").textContent = grouped(shown.length) + (shown.length === 1 ? " decision" : " decisions")
      + (last ? "; shown are " + grouped(first + 1) + " to " + grouped(first + page.length) : "");
    all(".previous").forEach(button => { button.hidden = !last; button.disabled = now.page === 0; });
    all(".next").forEach(button => { button.hidden = !last; button.disabled = now.page === last; });
  }
  function restart() { now.page = 0; show(); }

  // The slider: all verdicts follow from the two lengths of each decision.
  function look(place) {
    now.length = data.stops[place];
    const told = now.length + (now.length === data.tolerance ? ", the tolerance of this audit" : "");
    all(".length").forEach(slider => { slider.value = place; slider.setAttribute("aria-valuetext", told); });
    all(".looked output").forEach(node => { node.textContent = String(now.length); });
    all(".back").forEach(button => { button.disabled = now.length === data.tolerance; });
    all(".mark").forEach(mark => {
      const scale = document.querySelector(".plots").dataset;
      const x = Number(scale.left) + (scale.right - scale.left) * now.length / data.longest + "%";
      mark.setAttribute("x1", x);
      mark.setAttribute("x2", x);
    });
    all(".at").forEach(node => {
      const own = rows.filter(i => data.model[i] === Number(node.dataset.model)), counts = [0, 0, 0];
      // A selection of decisions would give other shares than the whole.
      if (own.length !== data.rows) { return; }
      own.forEach(i => { counts[verdictOf(i)] += 1; });
      node.textContent = "Within " + now.length + ": " + VERDICTS.map((name, verdict) => share(counts[verdict], own.length) + " " + name).join(", ") + ".";
    });
    show();
  }

  function print(starts) {
    now.printing = starts;
    all("#list > li > details").forEach(details => {
      if (starts) { unfold(details); } else { details.open = now.open.has(Number(details.dataset.i)); }
    });
  }

  data.classes.forEach((name, place) => { if (data.prediction.includes(place)) { find("prediction").append(new Option(name, place)); } });
  const kinds = new Map();
  data.groups.forEach(([kind, value], place) => {
    if (!kinds.has(kind)) { kinds.set(kind, make("optgroup")); kinds.get(kind).label = kind; }
    kinds.get(kind).append(new Option(kind + ": " + value, place));
  });
  find("group").append(...kinds.values());
  find("group-label").hidden = !kinds.size;
  ["model", "prediction", "group"].filter(find).forEach(id => find(id).addEventListener("change", restart));
  find("search").addEventListener("input", restart);
  find("sort").addEventListener("change", () => { arrange(); restart(); });
  all(".verdict").forEach(box => box.addEventListener("change", restart));
  all(".length").forEach(slider => slider.addEventListener("input", () => look(Number(slider.value))));
  all(".back").forEach(button => button.addEventListener("click", () => look(data.stops.indexOf(data.tolerance))));
  const turn = by => () => { now.page += by; show(); find("pages").scrollIntoView({ block: "nearest" }); };
  all(".previous").forEach(button => button.addEventListener("click", turn(-1)));
  all(".next").forEach(button => button.addEventListener("click", turn(1)));
  window.matchMedia("print").addEventListener("change", event => print(event.matches));
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  find("static").hidden = true;
  all(".controls, .pages, #printing").forEach(node => { node.hidden = false; });
  arrange();
  look(data.stops.indexOf(data.tolerance));
})();
