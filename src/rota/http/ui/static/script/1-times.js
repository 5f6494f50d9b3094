// Times stay fresh and say the reader's own zone; menus close. Pages work without it.
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

  document.addEventListener("htmx:after:swap", () => {
    refresh();
    addCopyButtons();
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
