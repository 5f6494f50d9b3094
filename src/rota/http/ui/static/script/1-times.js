// Times stay fresh and say the reader's own zone; a transcript stays at its end; menus close. Pages work without it.
(() => {
  document.documentElement.classList.add("scripted");
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

  function relative(moment, now) {
    const seconds = Math.trunc((moment - now) / 1000), size = Math.abs(seconds);
    if (size < 2) return "now";
    if (size >= 7 * 86400) return null; // a date, as the server wrote it
    const [unit, name] = UNITS.find(([least]) => size >= least);
    const amount = `${Math.trunc(size / unit)} ${name}`;
    return seconds > 0 ? `in ${amount}` : `${amount} ago`;
  }

  function span(s) {
    const two = (big, a, small, b) => `${Math.trunc(s / big)} ${a} ${Math.trunc((s % big) / small)} ${b}`;
    if (s < 60) return `${Math.trunc(s)} s`;
    if (s < 3600) return two(60, "min", 1, "s");
    return s < 86400 ? two(3600, "h", 60, "min") : two(86400, "d", 3600, "h");
  }

  // The server writes times for the zone this reader came with last; only a first visit finds them in another.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const elsewhere = document.documentElement.dataset.zone !== zone;
  if (elsewhere) document.cookie = `rota_zone=${zone}; path=/; max-age=31536000; samesite=lax`;
  const parts = new Intl.DateTimeFormat("en-GB", {
    weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });

  function clock(moment, kind) {
    const is = Object.fromEntries(parts.formatToParts(moment).map(({ type, value }) => [type, value]));
    const time = `${is.hour}:${is.minute}`;
    return kind === "second" ? `${time}:${is.second}` : `${is.weekday} ${is.day} ${is.month.slice(0, 3)}, ${time}`;
  }

  function put(element, text) {
    if (text !== null && element.textContent !== text) element.textContent = text;
  }

  function refresh() {
    const now = Date.now();
    for (const each of document.querySelectorAll("time[datetime]")) {
      const moment = Date.parse(each.dateTime);
      if (!each.title || each.title.endsWith(" UTC")) each.title = exact.format(moment); // as the server wrote it
      if (elsewhere && each.dataset.at) put(each, clock(moment, each.dataset.at));
      if ("ago" in each.dataset) put(each, relative(moment, now));
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
  let atEnd = false, read = null, stood = 0;
  document.addEventListener("htmx:before:swap", () => {
    atEnd = !!document.getElementById("tail") && innerHeight + scrollY >= document.body.scrollHeight - 96;
    read = atEnd ? null : [...(transcript?.children ?? [])].find((each) => each.getBoundingClientRect().bottom > 0);
    stood = read?.getBoundingClientRect().top;
  });
  // However much is said while somebody watches, the page stays light; what went is one click away.
  const MOST = 400;
  function trim() {
    const all = transcript?.children, earlier = document.getElementById("earlier");
    if (!all || !atEnd || all.length <= MOST) return;
    while (all.length > MOST / 2) all[0].remove();
    const link = earlier.querySelector("a");
    link.href = link.href.replace(/before=\d+/, `before=${all[0].dataset.seq}`);
    earlier.hidden = false;
  }

  // What is earlier comes as one scrolls up to it, until there is much; from then on by a click, as a page of its own.
  const MUCH = 1000;
  function goBack(link) {
    if (transcript.children.length >= MUCH) return false;
    if (!("asked" in link.dataset)) {
      link.dataset.asked = "";
      htmx.ajax("GET", link.href, { source: link, target: "#transcript", swap: "afterbegin" }).finally(() => delete link.dataset.asked);
    }
    return true;
  }
  const wayBack = () => document.querySelector("#earlier:not([hidden]) a");
  let lay = scrollY;
  if (transcript) addEventListener("scroll", () => {
    const up = scrollY < lay;
    lay = scrollY;
    if (up && scrollY < innerHeight && wayBack()) goBack(wayBack());
  }, { passive: true });
  document.addEventListener("click", (event) => {
    const plain = !(event.ctrlKey || event.metaKey || event.shiftKey || event.button);
    if (plain && event.target.closest("#earlier a") && goBack(wayBack())) event.preventDefault();
  });

  document.addEventListener("htmx:after:swap", () => {
    trim();
    refresh();
    addCopyButtons();
    if (atEnd) scrollTo(0, document.body.scrollHeight);
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
  for (const each of document.querySelectorAll("nav [aria-current]")) each.scrollIntoView({ block: "nearest", inline: "center" });

  refresh();
  addCopyButtons();
  setInterval(() => document.hidden || refresh(), 1000);
})();
