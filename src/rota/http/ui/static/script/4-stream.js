// A stream that broke is mended by htmx. One that never came about is asked for again here, until a server takes it.
// While neither succeeds, the page says that it may be old; and once it is refused, that there is no more to come.
(() => {
  const open = new WeakSet(), line = document.getElementById("line");
  let tries = 0, failures = 0, holds = 0, over = false;
  function lost(status) {
    clearTimeout(holds);
    holds = 0;
    failures += 1;
    over = status === 403 || status === 404;
    if (status === 401) signedOut();
    else if (over) line.textContent = "What this page shows is gone.";
    else if (status === 429) line.textContent = "Too many pages: what you see may be old.";
    else if (failures > 1 && !line.textContent) line.textContent = "No connection: what you see may be old.";
  }
  function held() {
    clearTimeout(holds);
    holds = failures = 0;
    if (out) renew();
    else line.textContent = "";
  }
  // Who was signed out keeps what they wrote: they sign in beside it, and the page goes on with the secret of that sign-in.
  let out = false;
  function signedOut() {
    out = true;
    const target = document.querySelector("main textarea") ? "_blank" : "";
    line.replaceChildren("You are signed out. ", Object.assign(document.createElement("a"), { href: location.href, target, textContent: "Sign in" }));
  }
  async function renew() {
    const answer = out ? await fetch(location.href).catch(() => null) : null;
    if (!answer?.ok || answer.redirected) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html"), headers = "hx-headers:inherited", secret = "input[name=csrf]";
    document.body.setAttribute(headers, page.body.getAttribute(headers));
    for (const each of document.querySelectorAll(secret)) each.value = page.querySelector(secret).value;
    out = false;
    held();
    return true;
  }
  document.addEventListener("outdated", () => { out = true; renew(); });
  // A form that leads to another page is sent once, however often it is pressed, and only while its sign-in holds: behind
  // the way in, what was typed would be lost.
  const find = document.getElementById("palette")?.dataset.find;
  let sending = false, sure = false;
  addEventListener("pageshow", () => { sending = false; });
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (sure || !find || form.method !== "post" || form.matches("[hx-post]") || !(out || form.closest("main"))) return;
    event.preventDefault();
    if (sending) return;
    sending = true;
    sure = await (out ? renew() : holdsSignIn());
    if (sure) form.requestSubmit(event.submitter);
    setTimeout(() => { sending = false; }, sure ? 1e4 : 0); // who stopped it may try again
    sure = false;
  });
  async function holdsSignIn() {
    const answer = await fetch(find, { headers: { "HX-Request": "true" } }).catch(unanswered);
    if (answer?.status === 401) signedOut();
    return answer && !out;
  }
  // Who does something and gets no answer is told so: the button alone looks as if it had done it.
  function unanswered() {
    const notice = Object.assign(document.createElement("div"), { className: "notice bad", textContent: "Rota does not answer. Try again when it is back." });
    document.getElementById("notice")?.replaceChildren(notice);
  }
  document.addEventListener("htmx:error", ({ detail: { ctx, error } }) => {
    if (ctx && !ctx.response && ctx.request.method !== "GET" && error?.name !== "AbortError") unanswered();
  });
  document.addEventListener("htmx:sse:error", ({ detail }) => lost(detail.status));
  document.addEventListener("htmx:before:sse:connection", ({ detail }) => {
    if (holds) lost();
    detail.connection.cancelled = over;
  });
  // A line is one once something came over it, or once it has held: a server that breaks then takes it first.
  document.addEventListener("htmx:after:sse:connection", (event) => {
    open.add(event.target);
    holds = setTimeout(held, 2000);
  });
  document.addEventListener("htmx:before:sse:message", held);
  document.addEventListener("htmx:finally:request", ({ target, detail }) => {
    const address = target.getAttribute?.("hx-sse:connect"), status = detail.ctx.response?.status;
    if (status === 401) signedOut();
    if (!address || open.has(target) || status < 429) return;
    lost(status);
    setTimeout(() => target.isConnected && htmx.ajax("GET", address, { source: target }), Math.min(500 * 2 ** tries++, 5000));
  });
})();
