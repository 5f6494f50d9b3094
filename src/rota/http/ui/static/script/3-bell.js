// Who follows a notification has read it. Without this, "Mark as read" says so.
(() => {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-read]");
    if (!link) return;
    const headers = JSON.parse(document.body.getAttribute("hx-headers:inherited")); // the secret of this sign-in
    fetch(link.dataset.read, { method: "POST", headers, keepalive: true, redirect: "manual" }).catch(() => {});
  });
})();
