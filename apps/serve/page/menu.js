// On a narrow screen the list of chats is a drawer over the page.
import { byId } from "./dom.js";

const narrow = matchMedia("(max-width: 760px)");

export function setUpMenu() {
  byId("open-menu").addEventListener("click", () => setOpen(true));
  byId("close-menu").addEventListener("click", () => setOpen(false));
  narrow.addEventListener("change", () => setOpen(false));
  document.addEventListener("click", (event) => {
    // The page behind is inert, so that a click on it arrives at the body.
    const behind = [document.body, document.documentElement].includes(event.target);
    if (isOpen() && behind) setOpen(false);
  });
  document.addEventListener("keydown", (event) => {
    const inDialog = document.querySelector("dialog[open]");
    if (event.key === "Escape" && isOpen() && !inDialog) setOpen(false);
  });
}

/** To be called when something in the list was chosen. */
export function closeMenu() {
  if (isOpen()) setOpen(false);
}

const isOpen = () => document.body.classList.contains("menu-open");

function setOpen(open) {
  const wasOpen = isOpen();
  document.body.classList.toggle("menu-open", open);
  byId("page").inert = open;
  byId("open-menu").setAttribute("aria-expanded", open);
  if (open) byId("close-menu").focus();
  else if (wasOpen && narrow.matches) byId("open-menu").focus();
}
