// A button that is at work cannot hold the focus, and what comes anew may replace it: who acts by keyboard stays there.
(() => {
  let held = null, ours = false;
  document.addEventListener("submit", ({ target, submitter }) => {
    if (!submitter || !target.matches("[hx-post]")) return;
    const row = submitter.closest("tr[id], li[id]");
    held = { button: submitter, key: submitter.dataset.key, row: row?.id, near: (row?.nextElementSibling ?? row?.previousElementSibling)?.id };
  }, true);
  for (const each of ["focusin", "pointerdown"]) document.addEventListener(each, () => { if (!ours) held = null; });

  const main = document.getElementById("main");
  function hold() {
    if (!held || document.activeElement !== document.body) return;
    const within = held.row ? document.getElementById(held.row) : document;
    const same = held.key && within?.querySelector(`[data-key="${held.key}"]`);
    const near = document.getElementById(held.near);
    const again = [held.button, same, held.row && within, near].find((each) => each?.isConnected && !each.disabled) ?? main;
    if (again === main) main.tabIndex = -1;
    ours = true;
    again.focus({ preventScroll: true });
    ours = false;
  }
  // Only then is the button itself free again.
  for (const each of ["htmx:finally:request", "htmx:after:swap"]) document.addEventListener(each, () => setTimeout(hold));
})();
