// Times stay fresh and say the reader's own zone; a transcript stays at its end; menus close. Pages work without it.
(() => {
  document.documentElement.classList.add("scripted");
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

  const count = (seconds, [unit, name]) => `${Math.trunc(seconds / unit)} ${name}`;

  function relative(moment, now) {
    const seconds = Math.trunc(Math.abs(moment - now) / 1000);
    if (seconds < 2) return "now";
    if (seconds >= 7 * 86400) return clock(moment);
    const amount = count(seconds, UNITS.find(([unit]) => seconds >= unit));
    return moment > now ? `in ${amount}` : `${amount} ago`;
  }

  function span(seconds) {
    // Less than any unit is an amount of the last: index -1.
    const [big, small] = UNITS.slice(UNITS.findIndex(([unit]) => seconds >= unit));
    return small ? `${count(seconds, big)} ${count(seconds % big[0], small)}` : count(seconds, big);
  }

  // The server writes times for the zone this reader came with last; only a first visit finds them in another.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const elsewhere = document.documentElement.dataset.zone !== zone;
  if (elsewhere) document.cookie = `rota_zone=${zone}; path=/; max-age=31536000; samesite=lax`;
  const parts = new Intl.DateTimeFormat("en-GB", {
    weekday: "short", day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });

  function clock(moment, kind) {
    const is = Object.fromEntries(parts.formatToParts(moment).map(({ type, value }) => [type, value]));
    const time = `${is.hour}:${is.minute}`, year = is.year == new Date().getFullYear() ? "" : ` ${is.year}`;
    return kind === "second" ? `${time}:${is.second}` : `${is.weekday} ${is.day} ${is.month.slice(0, 3)}${year}, ${time}`;
  }

  function put(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function refresh() {
    const now = Date.now();
    for (const each of document.querySelectorAll("time[datetime]")) {
      const moment = Date.parse(each.dateTime);
      if (!each.title || each.title.endsWith(" UTC")) each.title = exact.format(moment); // as the server wrote it
      if (elsewhere && each.dataset.at) put(each, clock(moment, each.dataset.at));
      if ("ago" in each.dataset) put(each, relative(moment, now));
      if ("due" in each.dataset) put(each, relative(Math.max(moment, now), now));
      if ("since" in each.dataset) put(each, span(Math.max(0, now - moment) / 1000));
    }
  }

  function addCopyButtons() {
    for (const each of document.querySelectorAll("pre[data-copy]:not([data-ready])")) {
      const button = Object.assign(document.createElement("button"), { className: "copy", type: "button", textContent: "Copy" });
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(each.textContent);
        button.textContent = "Copied";
      });
      each.dataset.ready = "";
      each.after(button);
    }
  }

  // Who reads the end goes on reading the end; who scrolled up is left alone: what they read stays where it is.
  const transcript = document.getElementById("transcript");
  const tail = document.getElementById("tail"), jump = document.getElementById("jump");
  const length = () => (transcript?.offsetHeight ?? 0) + (tail?.offsetHeight ?? 0);
  let atEnd = false, read = null, stood = 0, was = 0;
  if (jump) new IntersectionObserver(([end]) => jump.hidden = end.isIntersecting).observe(tail);
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
    refresh();
    addCopyButtons();
    if (atEnd && grew) scrollTo(0, document.body.scrollHeight);
    else if (read?.isConnected) scrollBy(0, read.getBoundingClientRect().top - stood);
  });

  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
  });
  document.addEventListener("said", (event) => event.target.reset?.());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.matches("[data-send]")) event.target.form.requestSubmit();
    const menu = event.key === "Escape" && document.querySelector("details.menu[open]");
    if (!menu) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });

  // On a phone the way through the pages is longer than the screen: show where one is.
  for (const each of document.querySelectorAll("nav [aria-current]")) {
    const way = each.closest("nav"), of = way.getBoundingClientRect(), is = each.getBoundingClientRect();
    way.scrollLeft += is.left + is.width / 2 - of.left - of.width / 2; // sideways alone: the page stays at its top
  }

  refresh();
  addCopyButtons();
  setInterval(() => document.hidden || refresh(), 1000);
})();
