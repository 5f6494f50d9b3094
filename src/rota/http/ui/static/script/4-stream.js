// A stream that broke is mended by htmx. One that never came about is asked for again here, until a server takes it.
(() => {
  const open = new WeakSet();
  let tries = 0;
  document.addEventListener("htmx:after:sse:connection", (event) => open.add(event.target));
  document.addEventListener("htmx:finally:request", ({ target, detail }) => {
    const address = target.getAttribute?.("hx-sse:connect");
    if (!address || open.has(target) || detail.ctx.response?.status < 500) return;
    setTimeout(() => target.isConnected && htmx.ajax("GET", address, { source: target }), Math.min(500 * 2 ** tries++, 5000));
  });
})();
