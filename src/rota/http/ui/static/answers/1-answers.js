// A question that came or moved just now is not answered yet: the click was meant for another that stood there.
// For the pages that show questions.
(() => {
  const root = document.documentElement, STANDS = 600;
  const places = () => [...document.querySelectorAll(".question")].map((each) => `${each.id} ${Math.round(each.getBoundingClientRect().top)}`).join();
  let stood = null, moving = 0;
  document.addEventListener("htmx:before:swap", () => { stood ??= places(); }); // one message swaps several parts
  // Once whatever keeps the page in its place has done so.
  document.addEventListener("htmx:after:swap", () => setTimeout(() => {
    const moved = stood !== null && places() !== stood;
    stood = null;
    if (!moved) return;
    root.classList.add("moving");
    clearTimeout(moving);
    moving = setTimeout(() => root.classList.remove("moving"), STANDS);
  }));
})();
