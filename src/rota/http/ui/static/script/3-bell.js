// Who follows a notification has read it. Without this, "Mark as read" says so.
(() => {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-read]");
    if (link) fetch(link.dataset.read, { method: "POST", keepalive: true, redirect: "manual" }).catch(() => {});
  });
})();
