// A mark opens its source: the quotation, and where it stands on the page.
(() => {
  function show(boxes) {
    const page = boxes.closest(".page");
    const first = boxes.querySelector("rect");
    if (!first) return;
    const above = first.getBoundingClientRect().top - page.getBoundingClientRect().top;
    page.scrollTop += above - page.clientHeight / 3;
  }

  function open() {
    const id = location.hash.slice(1);
    const quote = id.startsWith("source-") && document.getElementById(id);
    if (!quote) return;
    const source = quote.closest("details");
    source.open = true;
    for (const boxes of document.querySelectorAll(".overlay g")) {
      boxes.classList.toggle("chosen", boxes.dataset.source === id);
      if (boxes.dataset.source === id) show(boxes);
    }
    source.scrollIntoView();
    quote.focus({ preventScroll: true });
  }

  for (const source of document.querySelectorAll("#sources > details")) {
    const boxes = source.querySelector(".overlay g");
    if (!boxes) continue;
    source.addEventListener("toggle", () => source.open && !boxes.closest(".page").scrollTop && show(boxes));
    if (source.open) show(boxes);
  }
  for (const mark of document.querySelectorAll(".mark")) {
    mark.addEventListener("click", () => setTimeout(open)); // also when the hash stays the same
  }
  addEventListener("load", open);
})();
