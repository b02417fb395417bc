// What the document says; the other parts read it.
const data = JSON.parse(document.getElementById("data").textContent);
