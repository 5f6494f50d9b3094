// A question that came or moved just now is not answered yet: the click was meant for another that stood there.
(() => {
  const root = document.documentElement, STANDS = 600;
  const places = () => [...document.querySelectorAll(".question")].map((each) => `${each.id} ${Math.round(each.getBoundingClientRect().top)}`).join();
  let stood = null, moving = 0;
  // Before the first of several swaps that come together.
  document.addEventListener("htmx:before:swap", () => { stood ??= places(); });
  // Once whatever keeps the page in its place has done so.
  document.addEventListener("htmx:after:swap", () => setTimeout(() => {
    const still = [null, places()].includes(stood);
    stood = null;
    if (still) return;
    root.classList.add("moving");
    clearTimeout(moving);
    moving = setTimeout(() => root.classList.remove("moving"), STANDS);
  }));
})();
