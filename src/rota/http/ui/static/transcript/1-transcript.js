// A transcript stays at its end, or where it is read, and stays light. For the page of a session alone.
(() => {
  // Who reads the end goes on reading the end; who scrolled up is left alone: what they read stays where it is.
  const transcript = document.getElementById("transcript");
  const tail = document.getElementById("tail"), jump = document.getElementById("jump");
  const length = () => (transcript?.offsetHeight ?? 0) + (tail?.offsetHeight ?? 0);
  let atEnd = false, read = null, stood = 0, was = 0;
  if (jump) new IntersectionObserver(([end]) => jump.hidden = end.isIntersecting).observe(tail);
  // What is at work is followed from the first moment, unless the address or the browser says where to read.
  if (tail?.querySelector(".at-work .running") && !scrollY && !location.hash) scrollTo(0, document.body.scrollHeight);
  document.addEventListener("htmx:before:swap", () => {
    was = length();
    atEnd = !!tail && innerHeight + scrollY >= document.body.scrollHeight - 96;
    read = atEnd ? null : [...(transcript?.children ?? [])].find((each) => each.getBoundingClientRect().bottom > 0);
    stood = read?.getBoundingClientRect().top;
  });
  // However much is said, the page stays light: what is read, what is near it, and the end. The rest is one click away.
  const MOST = 400, MUCH = 1000, NEAR = 200, END = 100;
  const seqOf = (each) => Number(each.dataset.seq);
  function lighten() {
    const all = [...(transcript?.children ?? [])];
    if (all.length <= (atEnd ? MOST : MUCH) || document.querySelector("a[data-asked]")) return; // its answer must still fit
    const at = read ? all.indexOf(read) : all.length - 1, gap = all.findIndex((each) => each.id === "between");
    const from = Math.max(0, at - NEAR, gap < at ? gap + 1 : 0);
    const to = Math.min(at + NEAR, gap >= at ? gap : Infinity), end = Math.max(to, all.length - END);
    if (from) startWith(all[from]);
    if (to < end) leaveOut(all[to], all[end]);
    for (const each of [...all.slice(0, from), ...all.slice(to, end)]) each.remove();
  }
  function startWith(first) {
    const earlier = document.getElementById("earlier"), link = earlier.querySelector("a");
    link.href = link.href.replace(/before=\d+/, `before=${seqOf(first)}`);
    earlier.hidden = false;
  }
  function leaveOut(first, next) {
    const gap = Object.assign(document.createElement("p"), { className: "earlier", id: "between" });
    const href = `${location.pathname}?after=${seqOf(first) - 1}&before=${seqOf(next)}`;
    const textContent = `${(seqOf(next) - seqOf(first)).toLocaleString("en")} events are left out here`;
    gap.dataset.seq = seqOf(first);
    gap.append(Object.assign(document.createElement("a"), { href, textContent }));
    next.before(gap);
  }

  // What is earlier comes as one scrolls up to it, and what was left out as one scrolls down to it.
  function fill(link, target, swap) {
    if (!link || "asked" in link.dataset) return;
    link.dataset.asked = "";
    htmx.ajax("GET", link.href, { source: link, target, swap }).finally(() => delete link.dataset.asked);
  }
  const goBack = () => fill(document.querySelector("#earlier:not([hidden]) a"), "#transcript", "afterbegin");
  const goOn = () => fill(document.querySelector("#between a"), "#between", "outerHTML");
  let lay = scrollY;
  if (transcript) addEventListener("scroll", () => {
    const up = scrollY < lay, ahead = document.getElementById("between")?.getBoundingClientRect().top;
    lay = scrollY;
    if (up && scrollY < innerHeight) goBack();
    if (!up && ahead > 0 && ahead < 2 * innerHeight) goOn();
  }, { passive: true });
  document.addEventListener("click", (event) => {
    const plain = !(event.ctrlKey || event.metaKey || event.shiftKey || event.button);
    const fetch = !plain ? null : event.target.closest("#earlier a") ? goBack : event.target.closest("#between a") ? goOn : null;
    if (!fetch) return;
    event.preventDefault();
    fetch();
  });

  document.addEventListener("htmx:after:swap", () => {
    const grew = length() > was;
    lighten();
    if (atEnd && grew) scrollTo(0, document.body.scrollHeight);
    else if (read?.isConnected) scrollBy(0, read.getBoundingClientRect().top - stood);
  });
})();
