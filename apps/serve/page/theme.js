// Runs before the page is drawn, so that a chosen theme doesn't flash the other one first.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const other = { light: "dark", dark: "light" };
  let chosen = null; // what the user chose against the system's preference

  const preferred = () => (system.matches ? "dark" : "light");
  const shown = () => chosen ?? preferred();

  function apply() {
    document.documentElement.dataset.theme = shown();
    document.getElementById("theme")?.setAttribute("aria-pressed", shown() === "dark");
  }

  // A choice that equals the system's preference is none: the page follows the system again.
  function choose(theme) {
    chosen = theme === preferred() ? null : theme;
    try {
      if (chosen) localStorage.setItem("pippin.theme", chosen);
      else localStorage.removeItem("pippin.theme");
    } catch {
      // Without storage the choice lasts as long as the page.
    }
    apply();
  }

  try {
    const stored = localStorage.getItem("pippin.theme");
    chosen = stored in other ? stored : null;
  } catch {
    // No storage, no stored choice.
  }
  system.addEventListener("change", apply);
  apply();
  addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => choose(other[shown()]));
  });
})();
