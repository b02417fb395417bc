// What the document carries, from the top of the page to its end.
(() => {
  document.getElementById("about").textContent = data.about;
  document.getElementById("caveat").textContent = data.caveat;
  const attention = data.attention ? new Attention() : null;
  if (data.walkthrough) new Walk(attention);
  if (data.heads) new Heads(attention);
  for (const part of data.parts) {
    const section = addSection(part.id, part.title);
    section.append(...part.notes.map((note) => make("p", { class: "muted" }, note)));
    const tables = part.tables.map((one) => makeTable(one.caption, one.headers, one.rows));
    section.append(make("div", { class: "columns" }, ...tables));
    if (part.charts.length) {
      section.append(make("div", { class: "charts" }, ...part.charts.map(drawChart)));
    }
  }
  const nav = document.getElementById("contents");
  nav.append(...contents.map(([id, title]) => make("a", { href: `#${id}` }, title)));
  document.documentElement.dataset.ready = "true";
})();
