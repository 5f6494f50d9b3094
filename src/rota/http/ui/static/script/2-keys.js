// Keys: j and k walk through a list, letters act on the chosen row, g leads to a page, and a palette finds the rest.
// Everything they do is also a link or a button on the page.
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const palette = $("#palette"), keys = $("#keys");
  if (!palette) return;
  const input = $("input", palette), list = $("ul", palette);
  let awaited = null, asked = 0;

  const typing = (element) => element?.closest("input:not([type=radio]):not([type=checkbox]), textarea, select, [contenteditable]");
  const rows = () => [...document.querySelectorAll("tr[data-open]")];
  const chosen = () => $("tr.chosen") ?? document.activeElement?.closest("tr[data-open]");

  function choose(step) {
    const all = rows(), at = all.indexOf(chosen());
    const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + step, 0), all.length - 1)];
    if (!next) return;
    all.forEach((each) => each.classList.toggle("chosen", each === next));
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  const go = (href) => href && location.assign(href);
  const press = (name) => chosen()?.querySelector(`[data-key="${name}"]`)?.click() ?? $(`.heading [data-key="${name}"]`)?.click();

  const plain = {
    j: () => choose(1), k: () => choose(-1),
    Enter: () => go(chosen()?.dataset.open),
    n: () => go($("[data-new]")?.dataset.new), r: () => press("r"), p: () => press("p"), e: () => press("e"),
    "/": () => ($("input[type=search]") ?? { focus: open }).focus(), "?": () => keys.showModal(),
    g: () => { awaited = setTimeout(() => { awaited = null; }, 1500); },
  };

  function open() {
    input.value = "";
    palette.showModal();
    look();
  }

  // The pages of this workspace at once; automations by name as the server finds them.
  async function look() {
    const number = ++asked, wanted = input.value.trim().toLowerCase();
    const pages = [...document.querySelectorAll("[data-command]")].map((each) => [each.dataset.command, each.dataset.new || each.href, "Page"]);
    show(pages.filter(([name]) => name.toLowerCase().includes(wanted)));
    const answer = await fetch(`${palette.dataset.find}?q=${encodeURIComponent(wanted)}`, { headers: { Accept: "application/json" } });
    if (number !== asked || !answer.ok) return;
    const found = (await answer.json()).map(({ name, href, kind }) => [name, href, kind]);
    show([...pages.filter(([name]) => name.toLowerCase().includes(wanted)), ...found]);
  }

  function show(found) {
    list.replaceChildren(...found.map(([name, href, kind], at) => {
      const line = document.createElement("li"), link = document.createElement("a"), what = document.createElement("span");
      Object.assign(link, { href, id: `found-${at}`, tabIndex: -1 });
      link.setAttribute("role", "option");
      link.setAttribute("aria-selected", String(at === 0));
      line.setAttribute("role", "presentation");
      link.append(name);
      Object.assign(what, { className: "kind", textContent: kind });
      link.append(what);
      line.append(link);
      return line;
    }));
    if (!found.length) list.append(Object.assign(document.createElement("li"), { className: "empty-handed", textContent: "Nothing is called so." }));
    input.setAttribute("aria-activedescendant", found.length ? "found-0" : "");
  }

  function move(step) {
    const all = [...list.querySelectorAll("a")], at = all.findIndex((each) => each.ariaSelected === "true");
    const next = all[(at + step + all.length) % all.length];
    all.forEach((each) => { each.ariaSelected = String(each === next); });
    next?.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", next?.id ?? "");
  }

  // What a list was searched for stays in its address, and in those of its filters: who comes back finds it again.
  document.addEventListener("htmx:after:swap", ({ detail: { ctx } }) => {
    if (ctx.sourceElement?.type !== "search") return;
    history.replaceState(null, "", ctx.request.action);
    for (const each of document.querySelectorAll(".filters a")) {
      const to = new URL(each.href);
      to.searchParams.set("q", ctx.sourceElement.value);
      each.href = to;
    }
  });

  input.addEventListener("input", look);
  palette.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) move(step);
    else if (event.key === "Enter") go($("a[aria-selected=true]", list)?.href);
    else return;
    event.preventDefault();
  });
  for (const each of [palette, keys]) {
    each.addEventListener("click", (event) => { if (event.target === each) each.close(); });
  }

  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-palette]")) open();
    if (event.target.closest("[data-keys]")) keys.showModal();
  });
  document.addEventListener("keydown", (event) => {
    if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      palette.open ? palette.close() : open();
      return;
    }
    if (event.metaKey || event.ctrlKey || event.altKey || typing(event.target) || $("dialog[open]")) return;
    if (awaited) {
      clearTimeout(awaited);
      awaited = null;
      const place = $(`[data-go="${CSS.escape(event.key)}"]`);
      if (place) go(place.href);
      return;
    }
    const act = plain[event.key];
    // A row that has just been drawn anew is chosen before it has the focus again.
    if (!act || (event.key === "Enter" && !event.target.matches("tr[data-open], body"))) return;
    event.preventDefault();
    act();
  });
})();
