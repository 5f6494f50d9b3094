// A stream that broke is mended by htmx. One that never came about is asked for again here, until a server takes it.
// While neither succeeds, the page says that it may be old.
(() => {
  const open = new WeakSet(), line = document.getElementById("line");
  let tries = 0, failures = 0;
  function lost(status) {
    failures += 1;
    if (status === 401) {
      const link = Object.assign(document.createElement("a"), { href: location.href, textContent: "Sign in" });
      line.replaceChildren("You are signed out. ", link);
    } else if (failures > 1 && !line.textContent) line.textContent = "No connection to Rota: what you see may be old. It is tried again.";
  }
  // Who does something and gets no answer is told so: the button alone looks as if it had done it.
  document.addEventListener("htmx:error", ({ detail: { ctx, error } }) => {
    if (!ctx || ctx.response || ctx.request.method === "GET" || error?.name === "AbortError") return;
    const notice = Object.assign(document.createElement("div"), { className: "notice bad", textContent: "Rota does not answer. Try again when it is back." });
    document.getElementById("notice")?.replaceChildren(notice);
  });
  document.addEventListener("htmx:sse:error", ({ detail }) => lost(detail.status));
  document.addEventListener("htmx:after:sse:connection", (event) => {
    open.add(event.target);
    failures = 0;
    line.textContent = "";
  });
  document.addEventListener("htmx:finally:request", ({ target, detail }) => {
    const address = target.getAttribute?.("hx-sse:connect");
    if (!address || open.has(target) || detail.ctx.response?.status < 500) return;
    lost();
    setTimeout(() => target.isConnected && htmx.ajax("GET", address, { source: target }), Math.min(500 * 2 ** tries++, 5000));
  });
})();
